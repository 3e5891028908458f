//! Files that survive a crash: temporary file, fdatasync, checked close, rename or link, fsync of
//! the folder. A zero return of fsync is the only evidence that bytes are on the disk.
//!
//! [`replace`] is for a file with one writer at a time, and replaces anything that a dead writer
//! left. [`publish`] is for a name that several processes may compete for, and never replaces.
#![allow(unsafe_code)] // std's File ignores the result of close(2)

mod atomic_file;
pub mod cache_folder;
mod direct_file;
mod filesystem;
mod folders;
pub mod process_limits;
mod publish;
mod refusal;
pub mod regular_file;
pub mod system;
mod temporary;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};

pub use atomic_file::AtomicFile;
pub use direct_file::{BUFFER_BYTES, DirectFile};
pub use filesystem::{Filesystem, Medium};
pub use folders::{create_folders, remove_folder};
pub use publish::{Published, publish, publish_with};
pub use regular_file::Mode;
pub use temporary::temporary;

/// The file system refused an operation.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot {operation}: {}{reason}", path.display(), process_limits::explained(source))]
pub struct IoError {
    /// File or folder.
    pub path: PathBuf,
    /// Attempted operation, as in `rename`.
    pub operation: &'static str,
    /// Error of the system.
    pub source: io::Error,
    /// Owner, user and file system of a refused path, as the end of a sentence.
    reason: String,
}

impl IoError {
    /// Builds the error of a failed operation on a path, for `map_err`.
    pub fn at<E: Into<io::Error>>(path: &Path, operation: &'static str) -> impl FnOnce(E) -> Self {
        move |source| {
            let source = source.into();
            let reason = refusal::reason(path, operation, &source);
            Self { path: path.to_owned(), operation, source, reason }
        }
    }
}

/// Replaces a file of a run with `bytes`, durably, through an [`AtomicFile`].
///
/// # Errors
/// The old file is then untouched, unless only the fsync of the folder failed.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), IoError> {
    replace_with(path, bytes, Mode::Run)
}

/// Replaces a file like [`replace`], with another mode.
///
/// # Errors
/// Same errors as [`replace`].
pub fn replace_with(path: &Path, bytes: &[u8], mode: Mode) -> Result<(), IoError> {
    let mut file = AtomicFile::create(path, mode)?;
    file.write(bytes)?;
    file.commit()
}

/// Makes the name of a file or folder durable: fsync of its parent folder. Without that, a power
/// failure may undo a rename or the creation of a file.
///
/// # Errors
/// When the folder cannot be opened or synced.
pub fn sync_parent(path: &Path) -> Result<(), IoError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync_folder(parent.unwrap_or(Path::new(".")))
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<(), IoError> {
    let folder = File::open(path).map_err(IoError::at(path, "open"))?;
    folder.sync_all().map_err(IoError::at(path, "fsync"))
}

/// Makes a file's content durable and closes it.
pub(crate) fn finish(file: File, path: &Path) -> Result<(), IoError> {
    file.sync_data().map_err(IoError::at(path, "fdatasync"))?;
    // SAFETY: `into_raw_fd` gives up ownership of an open descriptor, and nothing uses it after.
    unsafe { rustix::io::try_close(file.into_raw_fd()) }.map_err(IoError::at(path, "close"))
}

/// Renames a file, replacing any other of that name. Durable after [`sync_parent`].
pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), IoError> {
    fs::rename(from, to).map_err(IoError::at(to, "rename"))
}

/// Returns a random number for names that no other process chooses.
///
/// # Errors
/// When the system has no random numbers.
pub fn random() -> Result<u32, IoError> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 4];
    let mut source = File::open(path).map_err(IoError::at(path, "open"))?;
    source.read_exact(&mut bytes).map_err(IoError::at(path, "read"))?;
    Ok(u32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_the_file_and_leaves_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        replace(&path, b"old").unwrap();
        fs::write(temporary(&path), "half of it, from a killed writer").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn links_at_both_names_are_replaced_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, victim] = ["record.json", "victim"].map(|name| folder.path().join(name));
        fs::write(&victim, b"precious").unwrap();
        for planted in [temporary(&path), path.clone()] {
            let _ = fs::remove_file(&planted); // of the round before
            std::os::unix::fs::symlink(&victim, &planted).unwrap();
            replace(&path, b"new").unwrap();
            assert_eq!(fs::read(&victim).unwrap(), b"precious");
            assert!(fs::symlink_metadata(&path).unwrap().is_file());
            assert_eq!(fs::read(&path).unwrap(), b"new");
        }
    }

    #[test]
    fn a_failed_rename_leaves_the_old_one_and_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        fs::create_dir(&path).unwrap(); // a folder cannot be replaced by a file
        let error = replace(&path, b"new").unwrap_err().to_string();
        assert!(error.contains("record.json: cannot rename"), "{error}");
        assert!(path.is_dir());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
