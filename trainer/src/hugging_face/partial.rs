//! The folder beside an export's target that becomes it when it is whole.
//!
//! One name per target, so that what a killed export left is found by the next one and replaced.
//! Whoever works in it holds a lock on the folder itself, which ends with the process: a folder
//! that can be locked is nobody's. What an export does not write is not an export's, and stays.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::export::{NEW_FOLDER, refuse};
use super::{CONFIG, WEIGHTS};
use crate::failure::Outcome;
use crate::record::atomic;

/// An empty folder of this process's own.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) path: PathBuf,
    /// Keeps the lock.
    _folder: File,
}

impl Partial {
    /// The one for a target, emptied of what a dead export left there.
    ///
    /// # Errors
    /// Exit code 2 when somebody else uses it, or it cannot be made.
    pub(super) fn take(out: &Path) -> Outcome<Self> {
        let path = path(out);
        let told = |error: io::Error| refuse(&path, error);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(told)?;
        }
        let is_new = match fs::create_dir(&path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(told(error)),
        };
        // A link may lead to a folder of somebody else's.
        if !fs::symlink_metadata(&path).map_err(told)?.is_dir() {
            return Err(refuse(&path, "expected a folder"));
        }
        let folder = File::open(&path).map_err(told)?;
        match folder.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(refuse(out, "is just being exported to")),
            // File systems without locks: only what was not there before is surely our own.
            Err(TryLockError::Error(_)) if is_new => {}
            Err(TryLockError::Error(_)) => {
                let hint = format!("remove {} if no export is running", path.display());
                let told = format!("an earlier export was cut short\n  hint: {hint}");
                return Err(refuse(out, told));
            }
        }
        // The export that held the lock until now may just have given the folder its name.
        let is_same = |found: &fs::Metadata, held: &fs::Metadata| {
            (found.dev(), found.ino()) == (held.dev(), held.ino())
        };
        let (found, held) = (fs::metadata(&path).map_err(told)?, folder.metadata().map_err(told)?);
        if !is_same(&found, &held) {
            return Err(refuse(out, "was just exported to"));
        }
        empty(&path)?;
        Ok(Self { path, _folder: folder })
    }

    /// Gives the folder, in which everything is durable, its name, durably.
    pub(super) fn become_folder(&self, out: &Path) -> Outcome<()> {
        fs::rename(&self.path, out)
            .map_err(|error| refuse(out, format!("{error}\n  hint: {NEW_FOLDER}")))?;
        atomic::sync_folder_of(out).map_err(|error| refuse(out, error))
    }
}

fn path(out: &Path) -> PathBuf {
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    out.with_file_name(format!(".{name}.export-partial"))
}

/// Removes what an export writes, if there is nothing else.
fn empty(path: &Path) -> Outcome<()> {
    let told = |error: io::Error| refuse(path, error);
    let ours = [WEIGHTS.to_owned(), CONFIG.to_owned(), format!("{CONFIG}.tmp")];
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(told)? {
        let name = entry.map_err(told)?.file_name();
        if !ours.iter().any(|own| name == own.as_str()) {
            let shown = name.to_string_lossy();
            return Err(refuse(path, format!("{shown} is no part of an export: not replaced")));
        }
        found.push(path.join(name));
    }
    found.iter().try_for_each(fs::remove_file).map_err(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("exported");
        let partial = path(&out);
        (folder, out, partial)
    }

    #[test]
    fn what_a_dead_export_left_is_replaced() {
        let (_folder, out, left) = target();
        fs::create_dir(&left).unwrap();
        for name in ["model.safetensors", "config.json.tmp"] {
            fs::write(left.join(name), "half").unwrap();
        }
        let partial = Partial::take(&out).unwrap();
        assert_eq!(fs::read_dir(&partial.path).unwrap().count(), 0);
        partial.become_folder(&out).unwrap();
        assert!(out.is_dir() && !left.exists());
    }

    #[test]
    fn what_a_living_export_has_is_left_to_it() {
        let (_folder, out, left) = target();
        let living = Partial::take(&out).unwrap();
        fs::write(living.path.join("model.safetensors"), "half").unwrap();
        let refused = Partial::take(&out).unwrap_err().to_string();
        assert!(refused.contains("just being exported"), "{refused}");
        assert!(left.join("model.safetensors").exists());
        drop(living);
        Partial::take(&out).unwrap();
    }

    #[test]
    fn what_no_export_wrote_stays() {
        let (folder, out, left) = target();
        fs::create_dir(&left).unwrap();
        for name in ["config.json", "notes.txt"] {
            fs::write(left.join(name), "mine").unwrap();
        }
        let refused = Partial::take(&out).unwrap_err().to_string();
        assert!(refused.contains("notes.txt is no part"), "{refused}");
        assert_eq!(fs::read_dir(&left).unwrap().count(), 2);
        let other = folder.path().join("other");
        fs::rename(&left, &other).unwrap();
        fs::remove_file(other.join("notes.txt")).unwrap();
        std::os::unix::fs::symlink(&other, &left).unwrap();
        let refused = Partial::take(&out).unwrap_err().to_string();
        assert!(refused.contains("expected a folder"), "{refused}");
        assert!(other.join("config.json").exists());
    }
}
