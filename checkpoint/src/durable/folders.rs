//! Folders that are created and removed so that a crash in between leaves no doubt what they are.

use std::fs;
use std::io;
use std::path::Path;

use super::{IoError, sync_folder, sync_parent};

/// Creates a folder and those above it that are missing, durably. Several ranks may do so at once.
///
/// # Errors
/// [`IoError`] when a folder cannot be created, or its name cannot be made durable.
pub fn create_folders(path: &Path) -> Result<(), IoError> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    fs::create_dir_all(path).map_err(IoError::at(path, "create folder"))?;
    missing.into_iter().rev().try_for_each(sync_parent)
}

/// Removes a folder and everything in it; a folder that does not exist is fine.
pub(crate) fn remove_folder(path: &Path) -> Result<(), IoError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(IoError::at(path, "remove")(error))
        }
        _ => Ok(()),
    }
}

/// Removes a folder and everything in it, the file `marker` last and only when the rest is durably
/// gone: while anything is left, the marker says what the folder is.
pub(crate) fn remove_folder_marker_last(path: &Path, marker: &str) -> Result<(), IoError> {
    for entry in fs::read_dir(path).map_err(IoError::at(path, "list"))? {
        let entry = entry.map_err(IoError::at(path, "list"))?;
        if entry.file_name() == marker {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_folder(&entry.path())?;
        } else {
            fs::remove_file(entry.path()).map_err(IoError::at(&entry.path(), "unlink"))?;
        }
    }
    sync_folder(path)?;
    let marker = path.join(marker);
    fs::remove_file(&marker).map_err(IoError::at(&marker, "unlink"))?;
    fs::remove_dir(path).map_err(IoError::at(path, "remove"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marker_outlives_the_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        fs::create_dir_all(path.join("d00")).unwrap();
        fs::write(path.join("d00/r00000-000.safetensors"), "x").unwrap();
        fs::write(path.join("MANIFEST.a.tmp"), "x").unwrap();
        fs::create_dir(path.join("marker")).unwrap(); // unlink refuses it
        assert!(remove_folder_marker_last(&path, "marker").is_err());
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        fs::remove_dir(path.join("marker")).unwrap();
        fs::write(path.join("marker"), "x").unwrap();
        remove_folder_marker_last(&path, "marker").unwrap();
        assert!(!path.exists());
    }
}
