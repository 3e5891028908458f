//! Detection of a folder's file system: a "local disk" of a container is often memory or a network.

use std::path::Path;

use rustix::fs::statfs;

use super::IoError;

/// The kind of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filesystem {
    /// Name as in mount(8), such as `xfs`; `ext4` also for ext2 and ext3. If the kind is unknown,
    /// the magic number in hexadecimal, such as `0x1cd1`.
    pub name: String,
    /// Medium that holds its bytes.
    pub medium: Medium,
}

/// Medium that holds the bytes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Medium {
    /// Disks of this machine.
    Disk,
    /// Memory of this machine, or a layer that is removed with its container: does not survive a
    /// restart.
    Ephemeral,
    /// Other machines, also where several machines share a disk.
    Network,
    /// Medium that the kind of file system does not reveal.
    Unknown,
}

/// Magic number, name and medium of known kinds, from `statfs(2)`, `linux/magic.h`, and the sources
/// of file systems that are not part of Linux.
const KNOWN: [(u32, &str, Medium); 24] = [
    (0xEF53, "ext4", Medium::Disk),
    (0x5846_5342, "xfs", Medium::Disk),
    (0x9123_683E, "btrfs", Medium::Disk),
    (0xF2F5_2010, "f2fs", Medium::Disk),
    (0x2FC1_2FC1, "zfs", Medium::Disk),
    (0xCA45_1A4E, "bcachefs", Medium::Disk),
    (0x0102_1994, "tmpfs", Medium::Ephemeral),
    (0x8584_58F6, "ramfs", Medium::Ephemeral),
    (0x9584_58F6, "hugetlbfs", Medium::Ephemeral),
    (0x794C_7630, "overlay", Medium::Ephemeral),
    (0x6969, "nfs", Medium::Network),
    (0xFF53_4D42, "cifs", Medium::Network),
    (0xFE53_4D42, "smb3", Medium::Network),
    (0x0BD0_0BD0, "lustre", Medium::Network),
    (0x4750_4653, "gpfs", Medium::Network),
    (0x1983_0326, "beegfs", Medium::Network),
    (0x00C3_6400, "ceph", Medium::Network),
    (0xAAD7_AAEA, "panfs", Medium::Network),
    (0x2003_0528, "orangefs", Medium::Network),
    (0x0116_1970, "gfs2", Medium::Network),
    (0x7461_636F, "ocfs2", Medium::Network),
    (0x5346_414F, "afs", Medium::Network),
    (0x0102_1997, "9p", Medium::Unknown),
    (0x6573_5546, "fuse", Medium::Unknown),
];

impl Filesystem {
    /// Returns the file system of a path, or of its nearest ancestor that exists.
    ///
    /// # Errors
    /// When statfs(2) fails.
    pub fn of(path: &Path) -> Result<Self, IoError> {
        let existing = path.ancestors().find(|folder| folder.exists());
        let existing = existing.unwrap_or(Path::new(".")); // of a relative path
        let found = statfs(existing).map_err(IoError::at(existing, "statfs"))?;
        Ok(Self::of_magic(found.f_type as u32))
    }

    fn of_magic(magic: u32) -> Self {
        match KNOWN.into_iter().find(|(known, ..)| *known == magic) {
            Some((_, name, medium)) => Self { name: name.to_owned(), medium },
            None => Self { name: format!("{magic:#x}"), medium: Medium::Unknown },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_that_of_the_mount() {
        let tmpfs = Filesystem { name: "tmpfs".to_owned(), medium: Medium::Ephemeral };
        assert_eq!(Filesystem::of(Path::new("/dev/shm")).unwrap(), tmpfs);
        assert_eq!(Filesystem::of(Path::new("/dev/shm/none/of/these")).unwrap(), tmpfs);
        let proc = Filesystem { name: "0x9fa0".to_owned(), medium: Medium::Unknown };
        assert_eq!(Filesystem::of(Path::new("/proc")).unwrap(), proc);
        let here = Filesystem::of(Path::new(".")).unwrap();
        assert_eq!(Filesystem::of(Path::new("does-not-exist")).unwrap(), here);
    }

    /// All bits of the magic number count, also on machines where it is signed.
    #[test]
    fn network_and_disk_are_distinguished() {
        assert_eq!(Filesystem::of_magic(0x0BD0_0BD0).medium, Medium::Network);
        assert_eq!(Filesystem::of_magic(0xFF53_4D42_u32).name, "cifs");
        assert_eq!(Filesystem::of_magic(0xEF53).medium, Medium::Disk);
    }
}
