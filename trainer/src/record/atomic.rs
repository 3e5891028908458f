//! Whole files or none: readers and restarts never see half of one.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::Error;

/// Replaces a file by `bytes`: a temporary file beside it, fsync, rename, fsync of the folder.
///
/// # Errors
/// [`Error::Io`]; the old file is then untouched and the temporary one is removed.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let outcome = fill(&temporary, bytes).and_then(|()| {
        fs::rename(&temporary, path).map_err(Error::io("rename the temporary file to", path))
    });
    if outcome.is_err() {
        let _ = fs::remove_file(&temporary); // the first failure is the one to tell
        return outcome;
    }
    sync_folder_of(path)
}

fn fill(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut file = File::create(path).map_err(Error::io("create", path))?;
    file.write_all(bytes).map_err(Error::io("write", path))?;
    file.sync_all().map_err(Error::io("make durable", path))
}

/// Makes a name durable: without this a rename itself may be lost with the power.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn sync_folder_of(path: &Path) -> Result<(), Error> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let opened = File::open(folder).map_err(Error::io("open", folder))?;
    opened.sync_all().map_err(Error::io("make durable", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_the_file_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        write(&path, b"old").unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// The temporary file is a link to a device that is always full: creating works, writing fails.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        write(&path, b"old").unwrap();
        std::os::unix::fs::symlink("/dev/full", folder.path().join("record.json.tmp")).unwrap();
        let error = write(&path, b"new").unwrap_err().to_string();
        assert!(error.contains("record.json.tmp: cannot write: No space left"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_rename_leaves_the_old_one_and_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        fs::create_dir(&path).unwrap(); // a folder cannot be replaced by a file
        let error = write(&path, b"new").unwrap_err().to_string();
        assert!(error.contains("cannot rename"), "{error}");
        assert!(path.is_dir());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
