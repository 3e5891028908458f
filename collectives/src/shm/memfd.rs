//! Anonymous memory that processes of one machine share: a memfd, which other processes open
//! through `/proc`. It has no name in any file system, so nothing is left behind by a process that
//! is killed, and it does not depend on the size of `/dev/shm`.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// The name of the memory in `/proc/PID/maps`.
const NAME: &str = "yardstick-shm";

/// Identifies shared memory for other processes of the machine, while its creator keeps the file
/// open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle {
    /// Process id and file descriptor of the creator; device and inode of the file.
    pub(crate) fields: [u64; Handle::FIELDS],
}

impl Handle {
    pub(crate) const FIELDS: usize = 4;
}

/// Memory that this process created, and the open file through which others map it.
#[derive(Debug)]
pub(super) struct Created {
    pub(super) map: MmapRaw,
    pub(super) file: File,
    pub(super) handle: Handle,
}

/// Creates zeroed memory.
pub(super) fn create(bytes: usize) -> io::Result<Created> {
    let file = File::from(memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(bytes as u64)?;
    // No process can truncate it, which would make accesses a SIGBUS.
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    let metadata = file.metadata()?;
    let process = u64::from(std::process::id());
    let handle =
        Handle { fields: [process, file.as_raw_fd() as u64, metadata.dev(), metadata.ino()] };
    Ok(Created { map: map(&file, bytes)?, file, handle })
}

/// Maps what another process created.
pub(super) fn open(handle: Handle, bytes: usize) -> io::Result<MmapRaw> {
    let [process, descriptor, device, inode] = handle.fields;
    let path = format!("/proc/{process}/fd/{descriptor}");
    let is_same = |found: &Metadata| {
        found.dev() == device && found.ino() == inode && found.len() == bytes as u64
    };
    let another = || io::Error::new(io::ErrorKind::NotFound, "another file has that descriptor");
    // Checked before it is opened: in another container the descriptor may be of anything.
    if !is_same(&std::fs::metadata(&path)?) {
        return Err(another());
    }
    let file = File::options().read(true).write(true).open(&path)?;
    if !is_same(&file.metadata()?) {
        return Err(another());
    }
    map(&file, bytes)
}

fn map(file: &File, bytes: usize) -> io::Result<MmapRaw> {
    MmapOptions::new().len(bytes).map_raw(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_is_not_taken_for_it() {
        let Created { file, handle, .. } = create(8192).unwrap();
        let mut other = handle;
        other.fields[3] += 1;
        assert!(open(other, 8192).is_err(), "another inode");
        assert!(open(handle, 4096).is_err(), "another size");
        assert!(open(handle, 8192).is_ok());
        drop(file);
        assert!(open(handle, 8192).is_err(), "it is closed");
    }
}
