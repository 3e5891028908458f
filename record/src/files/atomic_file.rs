//! Atomically replaced files.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::regular_file::Mode;
use super::temporary::{Created, Temporary};
use super::{IoError, finish};

/// Size up to which writes are buffered.
const BUFFER_BYTES: usize = 128 << 10;

/// A temporary file that replaces the file at its final path on commit: readers and restarts see
/// the old file or the new one. Without a commit it is removed.
///
/// The caller ensures that a file has one writer at a time. The temporary file is the path with
/// `.tmp` appended; one that a killed writer left is replaced. If there are two writers all the
/// same, the commit of the first fails.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    temporary: Temporary,
    file: BufWriter<File>,
}

impl AtomicFile {
    /// Creates the temporary file.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(path: &Path, mode: Mode) -> Result<Self, IoError> {
        let Created { temporary, file } = Temporary::create(path, mode)?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Self { path: path.to_owned(), temporary, file })
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
        self.file.write_all(bytes).map_err(IoError::at(&self.temporary.path, "write"))
    }

    /// Rewinds to the first byte, to overwrite a header.
    ///
    /// # Errors
    /// When the file cannot be positioned.
    pub fn rewind(&mut self) -> Result<(), IoError> {
        let position = self.file.seek(SeekFrom::Start(0));
        position.map(drop).map_err(IoError::at(&self.temporary.path, "seek in"))
    }

    /// Makes the content durable, renames the file to its final path, and makes the rename durable.
    ///
    /// # Errors
    /// The old file is then untouched, unless only the fsync of the folder failed.
    pub fn commit(self) -> Result<(), IoError> {
        let Self { path, temporary, file } = self;
        let written = file.into_inner().map_err(|error| error.into_error());
        let written = written.map_err(IoError::at(&temporary.path, "write"))?;
        temporary.check(&written)?;
        finish(written, &temporary.path)?;
        temporary.rename(&path)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_full_disk_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        fs::write(&path, b"old").unwrap();
        let mut file = AtomicFile::create(&path, Mode::Run).unwrap();
        file.file = BufWriter::new(File::options().write(true).open("/dev/full").unwrap());
        file.write(b"new").unwrap();
        let error = file.commit().unwrap_err().to_string();
        assert!(error.contains("record.json.tmp: cannot write: No space left"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn of_two_writers_the_last_one_commits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        let mut first = AtomicFile::create(&path, Mode::Run).unwrap();
        let mut second = AtomicFile::create(&path, Mode::Run).unwrap();
        first.write(b"first").unwrap();
        second.write(b"sec").unwrap();
        let error = first.commit().unwrap_err().to_string();
        let expected = "record.json.tmp: cannot rename: another process has replaced it";
        assert!(error.contains(expected), "{error}");
        assert!(!path.exists(), "the second one's file is not complete");
        second.write(b"ond").unwrap();
        second.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_that_takes_the_temporary_name_is_not_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        let mut file = AtomicFile::create(&path, Mode::Run).unwrap();
        file.write(b"new").unwrap();
        let moved = folder.path().join("moved");
        fs::rename(&file.temporary.path, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &file.temporary.path).unwrap();
        file.commit().unwrap_err();
        assert!(!path.exists());
    }
}
