//! Files that keep a temporary name until they are renamed.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::regular_file::{Mode, create_anew};
use super::{IoError, rename, sync_parent};

/// Name of the file that is written before it is renamed or linked to `path`.
pub fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// The temporary name of a file, with the identity of the file that this process has created under
/// it. If it is dropped before the rename, the file is removed, as it may hold the last free
/// blocks.
///
/// Another process may replace the file: one that hung in a write to a network file system and
/// should be dead, or whose successor took its place. The file at the name is then neither renamed,
/// as it may be half-written, nor removed.
#[derive(Debug)]
pub(super) struct Temporary {
    pub(super) path: PathBuf,
    inode: Inode,
}

/// Identity of a file, whatever its name.
#[derive(Debug, PartialEq, Eq)]
struct Inode {
    device: u64,
    number: u64,
}

impl Inode {
    fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), number: metadata.ino() }
    }
}

/// A new file and its temporary name.
#[derive(Debug)]
pub(super) struct Created {
    pub(super) temporary: Temporary,
    pub(super) file: File,
}

impl Temporary {
    /// Creates the temporary file of a path. Replaces one that a killed writer left.
    pub(super) fn create(path: &Path, mode: Mode) -> Result<Created, IoError> {
        let path = temporary(path);
        let file = create_anew(&path, mode)?;
        let metadata = file.metadata().map_err(IoError::at(&path, "stat"))?;
        Ok(Created { temporary: Self { path, inode: Inode::of(&metadata) }, file })
    }

    /// Fails if the temporary name holds another file than the open one. Some file systems renumber
    /// a file once nobody has it open.
    pub(super) fn check(&self, file: &File) -> Result<(), IoError> {
        let is_own = || -> io::Result<bool> {
            let found = fs::symlink_metadata(&self.path)?;
            Ok(Inode::of(&file.metadata()?) == Inode::of(&found))
        };
        if is_own().map_err(IoError::at(&self.path, "stat"))? {
            return Ok(());
        }
        let replaced = io::Error::other("another process has replaced it");
        Err(IoError::at(&self.path, "rename")(replaced))
    }

    /// Renames the file to its own path, durably. Its content must be durable already.
    pub(super) fn rename(self, path: &Path) -> Result<(), IoError> {
        rename(&self.path, path)?;
        sync_parent(path)
    }

    fn is_own(&self) -> io::Result<bool> {
        Ok(Inode::of(&fs::symlink_metadata(&self.path)?) == self.inode)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.is_own().unwrap_or(false) {
            drop(fs::remove_file(&self.path)); // the error before it is the one to report
        }
    }
}
