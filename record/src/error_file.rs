//! `attempts/NNN.rRRRRRR.failed`: the error of a failed rank. Only rank 0 writes the record, and it
//! may be killed before it learns why another rank failed.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::json;
use crate::limits::NOTE_BYTES_MAX;
use crate::sections::Reason;

/// Failure of one rank's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorFile {
    /// Exit code of the process.
    pub exit_code: u8,
    /// Reason for the failure.
    pub reason: Reason,
}

/// Exit code of a rank that lost a peer.
const PEER_LOST: u8 = 5;

impl ErrorFile {
    /// Writes the error file next to the attempt's file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, dir: &Path, attempt: u32, rank: usize) -> Result<(), Error> {
        json::write(&folder(dir).join(format!("{attempt:03}.r{rank:06}.failed")), self)
    }

    /// Returns whether the rank failed by itself, and not because it lost a peer.
    pub fn is_root_cause(&self) -> bool {
        self.exit_code != PEER_LOST
    }

    /// Returns the error file that explains an attempt: that of the lowest rank that failed by
    /// itself, else that of the lowest rank that lost a peer.
    pub fn of_attempt(dir: &Path, attempt: u32) -> Option<Self> {
        let prefix = format!("{attempt:03}.r");
        let names = fs::read_dir(folder(dir)).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let mut paths: Vec<PathBuf> = names
            .filter(|path: &PathBuf| {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                name.starts_with(&prefix) && name.ends_with(".failed")
            })
            .collect();
        paths.sort();
        let read = |path: &PathBuf| json::read(path, NOTE_BYTES_MAX, "an error file").ok();
        let files: Vec<Self> = paths.iter().filter_map(read).collect();
        let cause = files.iter().find(|file| file.is_root_cause());
        cause.or(files.first()).cloned()
    }
}

pub(super) fn folder(dir: &Path) -> PathBuf {
    dir.join("attempts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_cause_takes_precedence_over_a_lost_peer() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(folder(dir.path())).unwrap();
        assert_eq!(ErrorFile::of_attempt(dir.path(), 2), None);
        let file = |exit_code| ErrorFile { exit_code, reason: Reason::default() };
        file(5).write(dir.path(), 2, 1).unwrap();
        assert_eq!(ErrorFile::of_attempt(dir.path(), 2), Some(file(5)));
        file(1).write(dir.path(), 2, 3).unwrap();
        file(2).write(dir.path(), 1, 0).unwrap();
        assert_eq!(ErrorFile::of_attempt(dir.path(), 2), Some(file(1)));
    }
}
