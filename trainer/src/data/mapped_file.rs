//! Memory-mapped files: the only module of the data code that needs `unsafe`.

#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use record::files::IoError;
use rustix::fs::OFlags;

use crate::data::error::DataError;

/// Content of a file; the operating system reads a page on the first access.
#[derive(Debug)]
pub(in crate::data) struct MappedFile(memmap2::Mmap);

impl MappedFile {
    /// Maps a whole regular file; a user may name a link to it. Without `O_NONBLOCK`, opening a
    /// FIFO would block until another process opens it, too.
    pub(in crate::data) fn open(path: &Path) -> Result<Self, DataError> {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(path);
        let file = file.map_err(IoError::at(path, "open the token file"))?;
        let metadata = file.metadata().map_err(IoError::at(path, "read the size"))?;
        if !metadata.is_file() {
            return Err(DataError::Malformed {
                path: path.to_owned(),
                offset: 0,
                expected: "a regular file".to_owned(),
                found: if metadata.is_dir() { "a folder" } else { "a special file" }.to_owned(),
                hint: "; name each token file".to_owned(),
            });
        }
        // SAFETY: the map is read-only and private to this value. What the compiler cannot see is
        // another process: if one shrinks the file, a read past its end raises SIGBUS; if one
        // writes into it, bytes change under us, which is why they are only ever copied out of
        // the map as plain integers. Token files are written once and replaced by rename (as our
        // own writer does), which leaves this map on the old content.
        let map = unsafe { memmap2::Mmap::map(&file) };
        Ok(Self(map.map_err(IoError::at(path, "map into memory"))?))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
