//! Memory without a name that processes of one machine share: how it is made and found.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// Where another process of the same machine finds a segment: valid while its maker holds the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    /// Process and file number of the maker; device and inode of the file.
    pub(crate) fields: [u64; 4],
}

/// Makes memory of zeros. The file is to be kept until all have mapped it.
pub(super) fn create(bytes: usize) -> io::Result<(MmapRaw, File, Address)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("yardstick-node", flags)?);
    file.set_len(bytes as u64)?;
    // Nobody can shorten it under us, which would make access a SIGBUS.
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    let metadata = file.metadata()?;
    let (process, number) = (std::process::id().into(), file.as_raw_fd() as u64);
    let fields = [process, number, metadata.dev(), metadata.ino()];
    Ok((map(&file, bytes)?, file, Address { fields }))
}

/// Maps what another process made.
pub(super) fn open(address: Address, bytes: usize) -> io::Result<MmapRaw> {
    let [process, number, device, inode] = address.fields;
    let path = format!("/proc/{process}/fd/{number}");
    let is_ours =
        |found: &Metadata| (found.dev(), found.ino(), found.len()) == (device, inode, bytes as u64);
    let other = || io::Error::new(io::ErrorKind::NotFound, "another file has that number");
    // Looked at before it is opened: in another container the number may be anything.
    if !is_ours(&std::fs::metadata(&path)?) {
        return Err(other());
    }
    let file = File::options().read(true).write(true).open(&path)?;
    if !is_ours(&file.metadata()?) {
        return Err(other());
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
        let (_made, file, address) = create(8192).unwrap();
        let mut other = address;
        other.fields[3] += 1;
        assert!(open(other, 8192).is_err(), "another inode");
        assert!(open(address, 4096).is_err(), "another size");
        assert!(open(address, 8192).is_ok());
        drop(file);
        assert!(open(address, 8192).is_err(), "it is closed");
    }
}
