//! New files that are written with O_DIRECT. Data that is written once and not read soon would
//! evict everything else from the page cache, and copying it there takes longer than the disk
//! write.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use super::regular_file::Mode;
use super::temporary::{Created, Temporary};
use super::{IoError, finish};

/// Alignment of offsets, sizes and addresses of direct writes, which suits all disks with blocks of
/// up to 4096 bytes.
const ALIGN_BYTES: usize = 4096;
/// Size of a write: large enough for the disk, small enough that several fit into memory.
pub const BUFFER_BYTES: usize = 4 << 20;
/// Smallest size of an aligned piece that is written from the caller's memory.
const UNBUFFERED_BYTES_MIN: usize = 1 << 20;

/// A file that is written sequentially under a temporary name and then renamed. It is removed if it
/// is dropped before.
#[derive(Debug)]
pub struct DirectFile {
    path: PathBuf,
    temporary: Temporary,
    output: Output,
    buffer: AlignedBuffer,
    /// Bytes in the buffer.
    buffered: usize,
}

impl DirectFile {
    /// Creates the temporary file. Replaces one that a killed writer left.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(path: &Path, mode: Mode) -> Result<Self, IoError> {
        let Created { temporary, file } = Temporary::create(path, mode)?;
        Ok(Self {
            path: path.to_owned(),
            temporary,
            output: Output::new(file),
            buffer: AlignedBuffer::new(),
            buffered: 0,
        })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), IoError> {
        while !bytes.is_empty() {
            if bytes.len() >= UNBUFFERED_BYTES_MIN && self.is_aligned(bytes) {
                self.flush()?;
                let (blocks, rest) = bytes.split_at(bytes.len() / ALIGN_BYTES * ALIGN_BYTES);
                self.append(|output, _| output.append(blocks))?;
                bytes = rest;
            } else {
                let (piece, rest) = bytes.split_at(bytes.len().min(BUFFER_BYTES - self.buffered));
                let end = self.buffered + piece.len();
                self.buffer.bytes()[self.buffered..end].copy_from_slice(piece);
                self.buffered = end;
                bytes = rest;
                if self.buffered == BUFFER_BYTES {
                    self.flush()?;
                }
            }
        }
        Ok(())
    }

    /// Makes the content durable and renames the file, durably.
    ///
    /// # Errors
    /// When the file cannot be made durable or renamed.
    pub fn finish(mut self) -> Result<(), IoError> {
        self.flush()?;
        let Self { path, temporary, output, .. } = self;
        temporary.check(&output.file)?;
        finish(output.file, &temporary.path)?;
        temporary.rename(&path)
    }

    fn is_aligned(&self, bytes: &[u8]) -> bool {
        self.buffered.is_multiple_of(ALIGN_BYTES)
            && bytes.as_ptr().addr().is_multiple_of(ALIGN_BYTES)
    }

    fn flush(&mut self) -> Result<(), IoError> {
        let bytes = std::mem::take(&mut self.buffered);
        self.append(|output, buffer| output.append(&buffer.bytes()[..bytes]))
    }

    fn append(
        &mut self,
        append: impl FnOnce(&mut Output, &mut AlignedBuffer) -> io::Result<()>,
    ) -> Result<(), IoError> {
        append(&mut self.output, &mut self.buffer)
            .map_err(IoError::at(&self.temporary.path, "write"))
    }
}

/// An open file that is appended to.
#[derive(Debug)]
struct Output {
    file: File,
    is_direct: bool,
    bytes: u64,
}

impl Output {
    /// Sets O_DIRECT after creation: open(2) with a flag that it refuses would leave a file.
    fn new(file: File) -> Self {
        let is_direct = fcntl_setfl(&file, OFlags::DIRECT).is_ok();
        Self { file, is_direct, bytes: 0 }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !bytes.len().is_multiple_of(ALIGN_BYTES) {
            self.stop_direct()?; // the end of the file
        }
        match self.file.write_all_at(bytes, self.bytes) {
            // A file system may accept the flag and refuse the write, or have larger blocks.
            Err(error) if self.is_direct && is_invalid(&error) => {
                self.stop_direct()?;
                self.file.write_all_at(bytes, self.bytes)?;
            }
            written => written?,
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn stop_direct(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_direct) {
            fcntl_setfl(&self.file, OFlags::empty())?;
        }
        Ok(())
    }
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

/// Buffer of [`BUFFER_BYTES`] at an aligned address.
#[derive(Debug)]
struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
}

impl AlignedBuffer {
    fn new() -> Self {
        let memory = vec![0; BUFFER_BYTES + ALIGN_BYTES];
        let start = memory.as_ptr().align_offset(ALIGN_BYTES);
        Self { memory, start }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + BUFFER_BYTES]
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::regular_file::create_new;
    use super::*;

    #[test]
    fn a_refused_direct_write_is_buffered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let mut output =
            Output { file: create_new(&path, Mode::Run).unwrap(), is_direct: false, bytes: 0 };
        output.is_direct = fcntl_setfl(&output.file, OFlags::DIRECT).is_ok();
        let mut buffer = AlignedBuffer::new();
        buffer.bytes().iter_mut().zip(0..).for_each(|(byte, at): (_, u64)| *byte = at as u8);
        output.append(&buffer.bytes()[..2 * ALIGN_BYTES]).unwrap();
        let misaligned = buffer.bytes()[1..=ALIGN_BYTES].to_owned();
        output.append(&buffer.bytes()[1..=ALIGN_BYTES]).unwrap();
        assert_eq!(fs::read(&path).unwrap()[2 * ALIGN_BYTES..], misaligned);
    }

    #[test]
    fn large_aligned_pieces_are_not_copied() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let mut file = DirectFile::create(&path, Mode::Run).unwrap();
        let mut data = AlignedBuffer::new();
        data.bytes().fill(2);
        file.write(&[1; ALIGN_BYTES]).unwrap();
        file.write(&data.bytes()[..UNBUFFERED_BYTES_MIN + 5]).unwrap();
        assert_eq!(file.buffered, 5);
        assert_eq!(file.output.bytes, (ALIGN_BYTES + UNBUFFERED_BYTES_MIN) as u64);
        file.finish().unwrap();
        let expected = [vec![1; ALIGN_BYTES], vec![2; UNBUFFERED_BYTES_MIN + 5]].concat();
        assert!(fs::read(&path).unwrap() == expected);
    }

    #[test]
    fn the_file_of_another_process_is_not_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let mut hung = DirectFile::create(&path, Mode::Run).unwrap();
        hung.write(b"old").unwrap();
        let mut successor = DirectFile::create(&path, Mode::Run).unwrap();
        successor.write(b"half").unwrap();
        assert!(hung.finish().is_err());
        assert!(!path.exists());
        successor.write(b" and half").unwrap();
        successor.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"half and half");
    }

    #[test]
    fn a_full_disk_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = DirectFile::create(&folder.path().join("x"), Mode::Run).unwrap();
        file.output.file = File::options().write(true).open("/dev/full").unwrap();
        file.write(b"x").unwrap();
        let error = file.finish().unwrap_err().to_string();
        assert!(error.contains("x.tmp: cannot write: No space left"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
