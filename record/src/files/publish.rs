//! Files whose name belongs to the process that creates it first.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use rustix::io::Errno;

use super::regular_file::{Mode, create_new, holds};
use super::{IoError, finish, random, sync_parent, temporary};

/// Owner of the name that a process requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// This process: the file holds its bytes.
    Ours,
    /// Another process: the file holds other bytes, which stay.
    Taken,
}

/// Creates a file that must not exist, durably, all of it or nothing.
///
/// Uses link(2): rename replaces, and `RENAME_NOREPLACE` does not work on NFS and Lustre. An
/// existing file is compared with `bytes`, as a retransmitted NFS LINK collides with itself:
/// processes that compete for a name must write different bytes. Without hard links the file is
/// created exclusively and written in place: a crash may then leave half of it, which only a digest
/// inside it reveals.
///
/// When it returns `Ok`, the folder has been fsynced since the file had its name: a power failure
/// removes neither the name nor, if it is [`Published::Ours`], the bytes. Only the folder that
/// holds the file is fsynced: folders above it must be durable already. The removal of the
/// temporary file is not made durable, so a power failure may bring that file back.
///
/// # Errors
/// An [`IoError`] with the failed operation and its file. The file may exist all the same, with all
/// of `bytes`, if the folder could not be fsynced: then readers see it, but a power failure may
/// remove it. Calling again with the same bytes fsyncs the folder again, and returns
/// [`Published::Ours`].
pub fn publish(path: &Path, bytes: &[u8]) -> Result<Published, IoError> {
    publish_with(path, bytes, Mode::Run, || {})
}

/// Publishes like [`publish`], and calls `midway` when half of the temporary file is written.
///
/// # Errors
/// Same errors as [`publish`].
pub fn publish_with(
    path: &Path,
    bytes: &[u8],
    mode: Mode,
    midway: impl FnOnce(),
) -> Result<Published, IoError> {
    let new = NewFile { path, bytes, mode };
    publish_by(|staged, path| fs::hard_link(staged, path), &new, midway)
}

/// A file to publish.
struct NewFile<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    mode: Mode,
}

/// Publishes like [`publish_with`], with the given link(2).
fn publish_by(
    link: impl FnOnce(&Path, &Path) -> io::Result<()>,
    new: &NewFile<'_>,
    midway: impl FnOnce(),
) -> Result<Published, IoError> {
    let staged = temporary(&new.path.with_extension(format!("{:08x}", random()?)));
    let published = stage(&staged, new, midway).and_then(|()| {
        let published = link_or_compare(link, new, &staged)?;
        sync_parent(new.path)?;
        Ok(published)
    });
    // Remove it also after an error, as it may hold the last free block. If that fails, the
    // published file counts all the same.
    drop(fs::remove_file(&staged));
    published
}

fn stage(staged: &Path, new: &NewFile<'_>, midway: impl FnOnce()) -> Result<(), IoError> {
    let mut file = create_new(staged, new.mode)?;
    let (first, second) = new.bytes.split_at(new.bytes.len() / 2);
    file.write_all(first).map_err(IoError::at(staged, "write"))?;
    midway();
    file.write_all(second).map_err(IoError::at(staged, "write"))?;
    finish(file, staged)
}

fn link_or_compare(
    link: impl FnOnce(&Path, &Path) -> io::Result<()>,
    new: &NewFile<'_>,
    staged: &Path,
) -> Result<Published, IoError> {
    let linked = match link(staged, new.path) {
        Err(error) if has_no_hard_links(&error) => write_in_place(new),
        linked => linked.map_err(IoError::at(new.path, "link")),
    };
    match linked {
        Ok(()) => Ok(Published::Ours),
        Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => {
            let is_ours = holds(new.path, new.bytes)?;
            Ok(if is_ours { Published::Ours } else { Published::Taken })
        }
        Err(error) => Err(error),
    }
}

fn has_no_hard_links(error: &io::Error) -> bool {
    let refusals = [Errno::PERM, Errno::NOTSUP, Errno::OPNOTSUPP, Errno::NOSYS];
    refusals.iter().any(|refusal| error.raw_os_error() == Some(refusal.raw_os_error()))
}

/// Creates a file that must not exist and writes it durably, or removes it.
fn write_in_place(new: &NewFile<'_>) -> Result<(), IoError> {
    let NewFile { path, bytes, mode } = *new;
    let mut file = create_new(path, mode)?;
    let written = file.write_all(bytes).map_err(IoError::at(path, "write"));
    written.and_then(|()| finish(file, path)).inspect_err(|_| drop(fs::remove_file(path)))
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    fn new<'a>(path: &'a Path, bytes: &'a [u8]) -> NewFile<'a> {
        NewFile { path, bytes, mode: Mode::Run }
    }

    fn temporary_files(folder: &Path) -> Vec<std::path::PathBuf> {
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "tmp")).collect()
    }

    #[test]
    fn publish_never_replaces() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("MANIFEST.json");
        let mut half = 0;
        let midway = || half = fs::read(&temporary_files(folder.path())[0]).unwrap().len();
        assert_eq!(publish_with(&path, b"first", Mode::Run, midway).unwrap(), Published::Ours);
        assert_eq!(half, 2);
        assert_eq!(publish(&path, b"first").unwrap(), Published::Ours);
        assert_eq!(publish(&path, b"second").unwrap(), Published::Taken);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn a_temporary_file_that_cannot_be_removed_revokes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("MANIFEST.json");
        let link = |staged: &Path, path: &Path| {
            fs::rename(staged, path)?;
            fs::create_dir(staged) // unlink refuses it
        };
        assert_eq!(publish_by(link, &new(&path, b"first"), || {}).unwrap(), Published::Ours);
        assert_eq!(fs::read(&path).unwrap(), b"first");
    }

    /// The folder is moved away before it can be fsynced.
    #[test]
    fn a_folder_that_cannot_be_synced_is_an_error_and_the_file_stays() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("s000000001-a0001-00000001");
        let moved = parent.path().join("moved");
        fs::create_dir(&folder).unwrap();
        let link = |staged: &Path, path: &Path| {
            fs::hard_link(staged, path)?;
            fs::rename(&folder, &moved)
        };
        let published = folder.join("MANIFEST.json");
        let error = publish_by(link, &new(&published, b"first"), || {}).unwrap_err();
        assert_eq!((error.path, error.operation), (folder, "open"));
        let path = moved.join("MANIFEST.json");
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(publish(&path, b"first").unwrap(), Published::Ours);
    }

    #[test]
    fn publish_works_without_hard_links() {
        for errno in [Errno::PERM, Errno::NOTSUP, Errno::OPNOTSUPP, Errno::NOSYS] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("MANIFEST.json");
            let publish = |bytes| publish_by(|_, _| Err(errno.into()), &new(&path, bytes), || {});
            assert_eq!(publish(b"first").unwrap(), Published::Ours, "{errno:?}");
            assert_eq!(publish(b"first").unwrap(), Published::Ours);
            assert_eq!(publish(b"second").unwrap(), Published::Taken);
            assert_eq!(fs::read(&path).unwrap(), b"first");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
        let path = Path::new("/nowhere/MANIFEST.json");
        let other = link_or_compare(|_, _| Err(Errno::IO.into()), &new(path, b""), path);
        assert!(matches!(other, Err(IoError { operation: "link", .. })), "{other:?}");
    }

    /// A comparison would never end, or read a file that was not published here.
    #[test]
    fn a_fifo_or_a_link_at_the_name_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let [pipe, link, victim] = ["pipe", "link", "victim"].map(|name| folder.path().join(name));
        mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).unwrap();
        fs::write(&victim, b"first").unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        for (path, found) in [(&pipe, "a FIFO"), (&link, "a symbolic link")] {
            let error = publish(path, b"first").unwrap_err().to_string();
            assert!(error.ends_with(found), "{error}");
        }
        assert_eq!(fs::read(&victim).unwrap(), b"first");
        assert_eq!(temporary_files(folder.path()), [] as [std::path::PathBuf; 0]);
    }
}
