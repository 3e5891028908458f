//! Temporary folder that an export is written to; it is renamed to the target when complete.
//!
//! It has one name per target, so that the next export finds and replaces what a killed export
//! left. An export holds a lock (flock) on the folder itself, which ends with the process: a folder
//! that can be locked is not in use. Files that an export does not write are never removed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::errors::{NEW_FOLDER, export_error};
use super::file_names::{CONFIG, WEIGHTS};
use crate::failure::Outcome;
use record::files;

/// Empty folder that no other process uses.
#[derive(Debug)]
pub(super) struct StagingFolder {
    path: PathBuf,
    /// Holds the lock.
    _folder: File,
}

impl StagingFolder {
    /// Creates the folder for a target, or empties the one that a killed export left.
    ///
    /// # Errors
    /// Exit code 2 if another process uses it, or it cannot be created.
    pub(super) fn claim(out: &Path) -> Outcome<Self> {
        let path = path(out);
        let unusable = |error: io::Error| export_error(&path, error);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(unusable)?;
        }
        let is_new = match fs::create_dir(&path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(unusable(error)),
        };
        // A link may point to another folder of the user.
        if !fs::symlink_metadata(&path).map_err(unusable)?.is_dir() {
            return Err(export_error(&path, "expected a folder, found a link or file"));
        }
        let folder = File::open(&path).map_err(unusable)?;
        lock(out, &path, &folder, is_new)?;
        // The export that held the lock until now may have just renamed the folder.
        let found = fs::metadata(&path).map_err(unusable)?;
        let held = folder.metadata().map_err(unusable)?;
        if found.dev() != held.dev() || found.ino() != held.ino() {
            return Err(export_error(out, "another export has just written it"));
        }
        remove_leftovers(&path)?;
        Ok(Self { path, _folder: folder })
    }

    /// Returns the path of the folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the folder, in which all files are durable, to the target, durably.
    pub(super) fn publish(&self, out: &Path) -> Outcome<()> {
        fs::rename(&self.path, out)
            .map_err(|error| export_error(out, format!("{error}\n  hint: {NEW_FOLDER}")))?;
        files::sync_parent(out).map_err(|error| export_error(out, error))
    }
}

fn path(out: &Path) -> PathBuf {
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    out.with_file_name(format!(".{name}.export-partial"))
}

/// Locks the folder. On file systems without locks, only a folder that this process has created is
/// safe to use.
fn lock(out: &Path, path: &Path, folder: &File, is_new: bool) -> Outcome<()> {
    match folder.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(export_error(out, "another export is writing to it")),
        Err(TryLockError::Error(_)) if is_new => Ok(()),
        Err(TryLockError::Error(_)) => {
            let hint = format!("remove {} if no export is running", path.display());
            Err(export_error(out, format!("an earlier export was interrupted\n  hint: {hint}")))
        }
    }
}

/// Removes the files that an export writes, if there are no others.
fn remove_leftovers(path: &Path) -> Outcome<()> {
    let unusable = |error: io::Error| export_error(path, error);
    let ours = [WEIGHTS.to_owned(), CONFIG.to_owned(), format!("{CONFIG}.tmp")];
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(unusable)? {
        let name = entry.map_err(unusable)?.file_name();
        if !ours.iter().any(|own| name == own.as_str()) {
            let shown = name.to_string_lossy();
            let error = format!("{shown} is not part of an export, so the folder is not replaced");
            return Err(export_error(path, error));
        }
        found.push(path.join(name));
    }
    found.iter().try_for_each(fs::remove_file).map_err(unusable)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Target, and the path of its staging folder.
    struct Target {
        folder: tempfile::TempDir,
        out: PathBuf,
        staging: PathBuf,
    }

    fn target() -> Target {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("exported");
        let staging = path(&out);
        Target { folder, out, staging }
    }

    #[test]
    fn the_leftovers_of_a_killed_export_are_replaced() {
        let Target { out, staging, folder: _folder } = target();
        fs::create_dir(&staging).unwrap();
        for name in ["model.safetensors", "config.json.tmp"] {
            fs::write(staging.join(name), "half").unwrap();
        }
        let claimed = StagingFolder::claim(&out).unwrap();
        assert_eq!(fs::read_dir(claimed.path()).unwrap().count(), 0);
        claimed.publish(&out).unwrap();
        assert!(out.is_dir() && !staging.exists());
    }

    #[test]
    fn the_folder_of_a_running_export_is_refused() {
        let Target { out, staging, folder: _folder } = target();
        let running = StagingFolder::claim(&out).unwrap();
        fs::write(running.path().join("model.safetensors"), "half").unwrap();
        let error = StagingFolder::claim(&out).unwrap_err().to_string();
        assert!(error.contains("another export is writing"), "{error}");
        assert!(staging.join("model.safetensors").exists());
        drop(running);
        StagingFolder::claim(&out).unwrap();
    }

    #[test]
    fn files_that_no_export_wrote_are_kept() {
        let Target { folder, out, staging } = target();
        fs::create_dir(&staging).unwrap();
        for name in ["config.json", "notes.txt"] {
            fs::write(staging.join(name), "mine").unwrap();
        }
        let error = StagingFolder::claim(&out).unwrap_err().to_string();
        assert!(error.contains("notes.txt is not part"), "{error}");
        assert_eq!(fs::read_dir(&staging).unwrap().count(), 2);
        let other = folder.path().join("other");
        fs::rename(&staging, &other).unwrap();
        fs::remove_file(other.join("notes.txt")).unwrap();
        std::os::unix::fs::symlink(&other, &staging).unwrap();
        let error = StagingFolder::claim(&out).unwrap_err().to_string();
        assert!(error.contains("expected a folder"), "{error}");
        assert!(other.join("config.json").exists());
    }
}
