//! Files that are replaced as a whole.

use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::{IoError, finish, rename, sync_parent, temporary};

/// Writes are collected up to this size.
const BUFFER_BYTES: usize = 128 << 10;

/// A temporary file that replaces the file at its final path when it is committed: readers and
/// restarts see the old file or the new one. Without a commit it is removed, as it may hold the
/// last free blocks.
///
/// The caller makes sure that a file has one writer at a time. The temporary file is the path with
/// `.tmp` behind it; one that a killed writer left there is overwritten.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    temporary: RemovedOnDrop,
    file: BufWriter<File>,
}

/// The path of a file that is removed, unless a rename has taken it away.
#[derive(Debug)]
pub(super) struct RemovedOnDrop(pub(super) PathBuf);

impl Drop for RemovedOnDrop {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0)); // the error before it is the one to report
    }
}

impl AtomicFile {
    /// Creates the temporary file.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(path: &Path) -> Result<Self, IoError> {
        let temporary = temporary(path);
        let file = File::create(&temporary).map_err(IoError::at(&temporary, "create"))?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Self { path: path.to_owned(), temporary: RemovedOnDrop(temporary), file })
    }

    /// The final path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), IoError> {
        self.file.write_all(bytes).map_err(IoError::at(&self.temporary.0, "write"))
    }

    /// Continues at the first byte, to overwrite a header.
    ///
    /// # Errors
    /// When the file cannot be positioned.
    pub fn rewind(&mut self) -> Result<(), IoError> {
        let position = self.file.seek(SeekFrom::Start(0));
        position.map(drop).map_err(IoError::at(&self.temporary.0, "seek in"))
    }

    /// Makes the content durable, renames the file to its final path, and makes the rename durable.
    ///
    /// # Errors
    /// The old file is then untouched, unless only the fsync of the folder failed.
    pub fn commit(self) -> Result<(), IoError> {
        let Self { path, temporary, file } = self;
        let written = file.into_inner().map_err(|error| error.into_error());
        finish(written.map_err(IoError::at(&temporary.0, "write"))?, &temporary.0)?;
        rename(&temporary.0, &path)?;
        sync_parent(&path)
    }
}
