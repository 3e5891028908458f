//! The discipline by which bytes become durable: temporary file, fdatasync, checked close, rename
//! or link, fsync of the folder. A zero return of fsync is the only evidence there is.
#![allow(unsafe_code)] // std's File ignores what close(2) says

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::{Error, Result};

/// Where a file is written before it has its name.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// Creates a file that must not exist.
pub(crate) fn create(path: &Path) -> Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path).map_err(Error::io(path, "create"))
}

/// Makes a file's content durable and closes it.
pub(crate) fn finish(file: File, path: &Path) -> Result<()> {
    file.sync_data().map_err(Error::io(path, "fdatasync"))?;
    // SAFETY: `into_raw_fd` gives up ownership of an open descriptor, and nothing uses it after.
    unsafe { rustix::io::try_close(file.into_raw_fd()) }.map_err(Error::io(path, "close"))
}

/// Gives a finished temporary file its name. Durable after [`sync_folder`].
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(Error::io(to, "rename"))
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    let folder = File::open(path).map_err(Error::io(path, "open"))?;
    folder.sync_all().map_err(Error::io(path, "fsync"))
}

/// Creates a folder that must not exist. Its name is durable after [`sync_folder`] of its parent.
pub(crate) fn create_folder(path: &Path) -> Result<()> {
    fs::create_dir(path).map_err(Error::io(path, "create folder"))
}

/// Creates a folder and those above it that are missing, durably. Several ranks may do so at once.
pub(crate) fn create_folders(path: &Path) -> Result<()> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    fs::create_dir_all(path).map_err(Error::io(path, "create folder"))?;
    for folder in missing.into_iter().rev() {
        let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_folder(parent.unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

/// Writes a whole file under its name. Durable after [`sync_folder`].
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let staged = temporary(path);
    let mut file = create(&staged)?;
    file.write_all(bytes).map_err(Error::io(&staged, "write"))?;
    finish(file, &staged)?;
    rename(&staged, path)
}

/// What [`publish`] found under the name.
#[derive(Debug, PartialEq, Eq)]
pub enum Published {
    /// Nothing: the bytes are there now.
    New,
    /// The same bytes.
    Same,
    /// Other bytes, which stay.
    Other(Vec<u8>),
}

/// Writes a file under a name that nobody may have taken, durably, all or nothing.
///
/// Uses link(2): rename replaces, and `RENAME_NOREPLACE` does not work on NFS and Lustre. A name
/// that is taken is read back, as a retransmitted NFS LINK collides with itself. Where there are
/// no hard links the name is created exclusively and written in place: a crash may then leave half
/// of it, which its own digest gives away. `tag` makes the temporary name unique, and `midway` is
/// called when half of it is written.
///
/// # Errors
/// [`Error::Io`] naming the file and what was tried.
pub fn publish(path: &Path, tag: &str, bytes: &[u8], midway: impl FnOnce()) -> Result<Published> {
    publish_by(|staged, path| fs::hard_link(staged, path), path, tag, bytes, midway)
}

/// [`publish`] with another link(2).
fn publish_by(
    link: impl FnOnce(&Path, &Path) -> io::Result<()>,
    path: &Path,
    tag: &str,
    bytes: &[u8],
    midway: impl FnOnce(),
) -> Result<Published> {
    let staged = temporary(&path.with_extension(tag));
    let published = stage(&staged, bytes, midway).and_then(|()| {
        let published = take_name(link, path, &staged, bytes)?;
        sync_folder(path.parent().unwrap_or(Path::new(".")))?;
        Ok(published)
    });
    // Also after an error, as it may hold the last free block. That it stays revokes nothing.
    drop(fs::remove_file(&staged));
    published
}

fn stage(staged: &Path, bytes: &[u8], midway: impl FnOnce()) -> Result<()> {
    let mut file = create(staged)?;
    let (first, second) = bytes.split_at(bytes.len() / 2);
    file.write_all(first).map_err(Error::io(staged, "write"))?;
    midway();
    file.write_all(second).map_err(Error::io(staged, "write"))?;
    finish(file, staged)
}

fn take_name(
    link: impl FnOnce(&Path, &Path) -> io::Result<()>,
    path: &Path,
    staged: &Path,
    bytes: &[u8],
) -> Result<Published> {
    let (operation, taken) = match link(staged, path) {
        Err(error) if has_no_links(&error) => ("create", write_new(path, bytes)?),
        linked => ("link", linked),
    };
    match taken {
        Ok(()) => Ok(Published::New),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = fs::read(path).map_err(Error::io(path, "read"))?;
            Ok(if found == bytes { Published::Same } else { Published::Other(found) })
        }
        Err(error) => Err(Error::io(path, operation)(error)),
    }
}

fn has_no_links(error: &io::Error) -> bool {
    let refusals = [Errno::PERM, Errno::NOTSUP, Errno::OPNOTSUPP, Errno::NOSYS];
    refusals.iter().any(|refusal| error.raw_os_error() == Some(refusal.raw_os_error()))
}

/// Creates a file that must not exist (the inner result) and writes it durably, or removes it.
fn write_new(path: &Path, bytes: &[u8]) -> Result<io::Result<()>> {
    let mut file = match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => file,
        Err(error) => return Ok(Err(error)),
    };
    let written = file.write_all(bytes).map_err(Error::io(path, "write"));
    written.and_then(|()| finish(file, path)).inspect_err(|_| drop(fs::remove_file(path)))?;
    Ok(Ok(()))
}

/// Removes a folder and everything in it, one file of it last and only when the rest is durably
/// gone: while anything is left, that file tells what the folder is.
pub(crate) fn remove_folder_around(path: &Path, last: &str) -> Result<()> {
    for entry in fs::read_dir(path).map_err(Error::io(path, "list"))? {
        let entry = entry.map_err(Error::io(path, "list"))?;
        if entry.file_name() == last {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_folder(&entry.path())?;
        } else {
            fs::remove_file(entry.path()).map_err(Error::io(&entry.path(), "unlink"))?;
        }
    }
    sync_folder(path)?;
    let last = path.join(last);
    fs::remove_file(&last).map_err(Error::io(&last, "unlink"))?;
    fs::remove_dir(path).map_err(Error::io(path, "remove"))
}

/// Removes a folder and everything in it; a folder that is gone already is fine.
pub(crate) fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(path, "remove")(error))
        }
        _ => Ok(()),
    }
}

/// Eight random hexadecimal digits' worth.
pub(crate) fn random() -> Result<u32> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 4];
    let mut source = File::open(path).map_err(Error::io(path, "open"))?;
    io::Read::read_exact(&mut source, &mut bytes).map_err(Error::io(path, "read"))?;
    Ok(u32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publish_never_replaces() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("MANIFEST.json");
        let mut half = 0;
        let midway = || half = fs::read(folder.path().join("MANIFEST.a.tmp")).unwrap().len();
        assert_eq!(publish(&path, "a", b"first", midway).unwrap(), Published::New);
        assert_eq!(half, 2);
        assert_eq!(publish(&path, "b", b"first", || {}).unwrap(), Published::Same);
        let other = Published::Other(b"first".to_vec());
        assert_eq!(publish(&path, "c", b"second", || {}).unwrap(), other);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn a_temporary_file_that_stays_revokes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("MANIFEST.json");
        let link = |staged: &Path, path: &Path| {
            fs::rename(staged, path)?;
            fs::create_dir(staged) // unlink refuses it
        };
        assert_eq!(publish_by(link, &path, "a", b"first", || {}).unwrap(), Published::New);
        assert_eq!(fs::read(&path).unwrap(), b"first");
    }

    #[test]
    fn publish_works_without_hard_links() {
        for errno in [Errno::PERM, Errno::NOTSUP, Errno::OPNOTSUPP, Errno::NOSYS] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("MANIFEST.json");
            let publish = |bytes| publish_by(|_, _| Err(errno.into()), &path, "a", bytes, || {});
            assert_eq!(publish(b"first").unwrap(), Published::New, "{errno:?}");
            assert_eq!(publish(b"first").unwrap(), Published::Same);
            assert_eq!(publish(b"second").unwrap(), Published::Other(b"first".to_vec()));
            assert_eq!(fs::read(&path).unwrap(), b"first");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
        let path = Path::new("/nowhere/MANIFEST.json");
        let other = take_name(|_, _| Err(Errno::IO.into()), path, path, b"");
        assert!(matches!(other, Err(Error::Io { operation: "link", .. })), "{other:?}");
    }

    #[test]
    fn the_last_file_outlives_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        fs::create_dir_all(path.join("d00")).unwrap();
        fs::write(path.join("d00/r00000-000.safetensors"), "x").unwrap();
        fs::write(path.join("MANIFEST.a.tmp"), "x").unwrap();
        fs::create_dir(path.join("last")).unwrap(); // unlink refuses it
        assert!(remove_folder_around(&path, "last").is_err());
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        fs::remove_dir(path.join("last")).unwrap();
        fs::write(path.join("last"), "x").unwrap();
        remove_folder_around(&path, "last").unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn write_refuses_to_share_a_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r00000.idx.json");
        fs::write(temporary(&path), "of another process").unwrap();
        assert!(matches!(write(&path, b"x"), Err(Error::Io { operation: "create", .. })));
    }
}
