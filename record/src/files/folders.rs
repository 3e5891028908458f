//! Crash-safe creation and removal of folders: a crash in between leaves no doubt what they are.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::regular_file::Mode;
use super::{IoError, sync_folder, sync_parent};

/// Creates a folder and its missing ancestors, durably. Several ranks may do so at once.
///
/// # Errors
/// [`IoError`] when a folder cannot be created, or its name cannot be made durable.
pub fn create_folders(path: &Path, mode: Mode) -> Result<(), IoError> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    let created = DirBuilder::new().recursive(true).mode(mode.folder()).create(path);
    created.map_err(IoError::at(path, "create folder"))?;
    missing.into_iter().rev().try_for_each(sync_parent)
}

/// Removes a folder and everything in it, the file `last` at the end and only when the rest is
/// durably removed: while anything is left, that file identifies the folder. Several processes may
/// do so at once.
///
/// # Errors
/// When something in it cannot be removed.
pub fn remove_folder(path: &Path, last: &str) -> Result<(), IoError> {
    for entry in fs::read_dir(path).map_err(IoError::at(path, "list"))? {
        let entry = entry.map_err(IoError::at(path, "list"))?;
        if entry.file_name() == last {
            continue;
        }
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        unless_absent(removed).map_err(IoError::at(&path, "remove"))?;
    }
    sync_folder(path)?;
    let last = path.join(last);
    unless_absent(fs::remove_file(&last)).map_err(IoError::at(&last, "unlink"))?;
    fs::remove_dir(path).map_err(IoError::at(path, "remove"))
}

fn unless_absent(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(
        |error| {
            if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
        },
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn folders_of_a_run_are_of_the_user_and_the_group() {
        let folder = tempfile::tempdir().unwrap();
        let allowed = folder.path().join("allowed");
        fs::create_dir(&allowed).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for (wanted, bits) in [(Mode::Run, 0o750), (Mode::Umask, 0o777)] {
            let above = folder.path().join(format!("{wanted:?}"));
            create_folders(&above.join("attempts"), wanted).unwrap();
            for created in [above.join("attempts"), above] {
                assert_eq!(mode(&created), bits & mode(&allowed), "{wanted:?}");
            }
        }
    }

    #[test]
    fn the_marker_outlives_the_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        fs::create_dir_all(path.join("d00")).unwrap();
        fs::write(path.join("d00/r00000-000.safetensors"), "x").unwrap();
        fs::write(path.join("MANIFEST.a.tmp"), "x").unwrap();
        fs::create_dir(path.join("marker")).unwrap(); // unlink refuses it
        assert!(remove_folder(&path, "marker").is_err());
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        fs::remove_dir(path.join("marker")).unwrap();
        fs::write(path.join("marker"), "x").unwrap();
        remove_folder(&path, "marker").unwrap();
        assert!(!path.exists());
    }
}
