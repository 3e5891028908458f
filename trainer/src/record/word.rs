//! The last word of a rank that fails alone: only rank 0 keeps the record, and may be killed before
//! it learns why.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Error, Reason, parse, write_json};

/// How one rank's process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// Its exit code.
    pub exit_code: u8,
    /// Why.
    pub reason: Reason,
}

/// Exit code of a rank that only lost another.
const PEER_LOST: u8 = 5;

impl Word {
    /// Leaves it beside the attempt, as `attempts/NNN.rRRRRRR.failed`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn leave(&self, dir: &Path, attempt: u32, rank: usize) -> Result<(), Error> {
        write_json(&folder(dir).join(format!("{attempt:03}.r{rank:06}.failed")), self)
    }

    /// Whether it is of a rank that failed for a reason of its own.
    pub fn is_own(&self) -> bool {
        self.exit_code != PEER_LOST
    }

    /// The word that explains an attempt: of a rank that failed for a reason of its own, else of
    /// one that lost a peer; of the lowest such rank.
    pub fn of(dir: &Path, attempt: u32) -> Option<Self> {
        let prefix = format!("{attempt:03}.r");
        let names = fs::read_dir(folder(dir)).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let mut paths: Vec<PathBuf> = names
            .filter(|path: &PathBuf| {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                name.starts_with(&prefix) && name.ends_with(".failed")
            })
            .collect();
        paths.sort();
        let read = |path: &PathBuf| parse(path, &fs::read(path).ok()?, "a last word").ok();
        let words: Vec<Self> = paths.iter().filter_map(read).collect();
        let own = words.iter().find(|word| word.is_own());
        own.or(words.first()).cloned()
    }
}

fn folder(dir: &Path) -> PathBuf {
    dir.join("attempts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_of_its_own_goes_before_a_lost_peer() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(folder(dir.path())).unwrap();
        assert_eq!(Word::of(dir.path(), 2), None);
        let word = |exit_code| Word { exit_code, reason: Reason::default() };
        word(5).leave(dir.path(), 2, 1).unwrap();
        assert_eq!(Word::of(dir.path(), 2), Some(word(5)));
        word(1).leave(dir.path(), 2, 3).unwrap();
        word(2).leave(dir.path(), 1, 0).unwrap();
        assert_eq!(Word::of(dir.path(), 2), Some(word(1)));
    }
}
