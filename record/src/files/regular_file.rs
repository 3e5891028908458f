//! Opening and creating regular files: the files of a run, of a checkpoint and of a cache.
//!
//! Other users may be allowed to write to the folder. A symbolic link at the name of a file is
//! never followed, as it may lead to any file of the user. A FIFO, socket, device or folder is an
//! error at once instead of a read that never ends. Such an error has the kind
//! [`InvalidData`](ErrorKind::InvalidData): a caller with an older file falls back to that.
//!
//! Only the last part of a path is checked: a folder may be a link to another disk. A path from the
//! command line (`report --html`, `launch --log`, token files, a configuration) may be a link or a
//! pipe, and is opened with [`std::fs`] or [`read_named`].

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::IoError;

/// Permissions of a new file, before the umask is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The user alone: 0600. Files that other users could forge.
    Owner,
    /// The user, and the group for reading: 0640, folders 0750. Files of a run, which hold host
    /// names, paths and settings.
    Run,
    /// Everyone whom the umask allows: 0666, folders 0777. Output that a user asked for, and files
    /// that several users share.
    Umask,
}

impl Mode {
    /// Permissions of a file.
    pub fn file(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Run => 0o640,
            Self::Umask => 0o666,
        }
    }

    /// Permissions of a folder: whoever may read a file may search its folder.
    pub fn folder(self) -> u32 {
        match self {
            Self::Owner => 0o700,
            Self::Run => 0o750,
            Self::Umask => 0o777,
        }
    }
}

/// Opens a file for reading.
///
/// # Errors
/// When it does not exist, cannot be opened, or is not a regular file.
pub fn open_to_read(path: &Path) -> Result<File, IoError> {
    open(File::options().read(true), path)
}

/// Opens an existing file for writing, and keeps its content.
///
/// # Errors
/// Same errors as [`open_to_read`].
pub fn open_to_write(path: &Path) -> Result<File, IoError> {
    open(File::options().write(true), path)
}

/// Opens a file for appending; creates it where there is none.
///
/// # Errors
/// When it cannot be opened or created, or is not a regular file.
pub fn open_to_append(path: &Path, mode: Mode) -> Result<File, IoError> {
    open(File::options().append(true).create(true).mode(mode.file()), path)
}

/// Creates a file that must not exist.
///
/// # Errors
/// When the name exists already, or the file cannot be created.
pub fn create_new(path: &Path, mode: Mode) -> Result<File, IoError> {
    let created = OpenOptions::new().write(true).create_new(true).mode(mode.file()).open(path);
    created.map_err(IoError::at(path, "create"))
}

/// Creates a file in place of any file or link of this name; processes that have the old file open
/// keep it.
///
/// # Errors
/// When a folder has the name, the old file cannot be removed, or the new one cannot be created.
pub fn create_anew(path: &Path, mode: Mode) -> Result<File, IoError> {
    match create_new(path, mode) {
        Err(error) if error.source.kind() == ErrorKind::AlreadyExists => {
            remove(path)?;
            create_new(path, mode)
        }
        created => created,
    }
}

/// Reads a file of at most `bytes_max` bytes.
///
/// # Errors
/// Same errors as [`open_to_read`], with [`InvalidData`](ErrorKind::InvalidData) also for a larger
/// file, of which nothing is read.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, IoError> {
    let file = open_to_read(path)?;
    read_limited(&file, bytes_max).map_err(IoError::at(path, "read"))
}

/// Reads a file of at most `bytes_max` bytes as UTF-8.
///
/// # Errors
/// Same errors as [`read`], with [`InvalidData`](ErrorKind::InvalidData) also for other bytes.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, IoError> {
    to_text(path, read(path, bytes_max)?)
}

/// Reads a path that a user has named, of at most `bytes_max` bytes: a file, a link to one, or a
/// pipe.
///
/// # Errors
/// When it cannot be read, or is larger.
pub fn read_named(path: &Path, bytes_max: u64) -> Result<Vec<u8>, IoError> {
    let file = File::open(path).map_err(IoError::at(path, "open"))?;
    read_limited(&file, bytes_max).map_err(IoError::at(path, "read"))
}

/// Reads a path that a user has named as UTF-8, like [`read_named`].
///
/// # Errors
/// Same errors as [`read_named`], and for other bytes.
pub fn read_named_text(path: &Path, bytes_max: u64) -> Result<String, IoError> {
    to_text(path, read_named(path, bytes_max)?)
}

/// Returns whether a file holds these bytes and no others.
pub(crate) fn holds(path: &Path, bytes: &[u8]) -> Result<bool, IoError> {
    let file = open_to_read(path)?;
    let size_bytes = file.metadata().map_err(IoError::at(path, "stat"))?.len();
    if size_bytes != bytes.len() as u64 {
        return Ok(false);
    }
    let found = read_limited(&file, size_bytes).map_err(IoError::at(path, "read"))?;
    Ok(found == bytes)
}

fn to_text(path: &Path, bytes: Vec<u8>) -> Result<String, IoError> {
    String::from_utf8(bytes).map_err(|error| {
        IoError::at(path, "read")(io::Error::new(ErrorKind::InvalidData, error.utf8_error()))
    })
}

/// Error of a file that exceeds the limit of its kind.
fn too_large(found_bytes: u64, bytes_max: u64) -> io::Error {
    let text = format!("expected at most {bytes_max} bytes, found {found_bytes}");
    io::Error::new(ErrorKind::InvalidData, text)
}

/// Reads up to a limit: the file may grow meanwhile, and some file systems report no sizes.
fn read_limited(file: &File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let found = file.metadata()?.len();
    if found > bytes_max {
        return Err(too_large(found, bytes_max));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(found).unwrap_or_default());
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    let read = bytes.len() as u64;
    if read > bytes_max { Err(too_large(read, bytes_max)) } else { Ok(bytes) }
}

/// Opens a regular file only. `O_NONBLOCK` is for FIFOs, and changes nothing for regular files.
fn open(options: &mut OpenOptions, path: &Path) -> Result<File, IoError> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    // A link, a folder or a socket is refused by open(2), with errors that do not say so.
    let opened = opened.map_err(|error| describe(path).unwrap_or(error));
    let checked = opened.and_then(|file| {
        let found = file.metadata()?.file_type();
        if found.is_file() { Ok(file) } else { Err(not_regular(found)) }
    });
    checked.map_err(IoError::at(path, "open"))
}

/// Error for a name that exists and is not a regular file.
fn describe(path: &Path) -> Option<io::Error> {
    let found = fs::symlink_metadata(path).ok()?.file_type();
    (!found.is_file()).then(|| not_regular(found))
}

fn not_regular(found: FileType) -> io::Error {
    let found = match found {
        kind if kind.is_symlink() => "a symbolic link",
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    io::Error::new(ErrorKind::InvalidData, format!("expected a regular file, it is {found}"))
}

/// Removes a file or a link, but not a folder.
fn remove(path: &Path) -> Result<(), IoError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            let found = fs::symlink_metadata(path).map(|found| found.file_type());
            let error = found.ok().filter(FileType::is_dir).map_or(error, not_regular);
            Err(IoError::at(path, "replace")(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType as Node, mknodat};

    use super::*;

    const FAR: u64 = 1 << 20;

    type Open = fn(&Path) -> Result<(), IoError>;

    const OPENERS: [(&str, Open); 4] = [
        ("open_to_read", |path| open_to_read(path).map(drop)),
        ("open_to_write", |path| open_to_write(path).map(drop)),
        ("open_to_append", |path| open_to_append(path, Mode::Run).map(drop)),
        ("read", |path| read(path, FAR).map(drop)),
    ];

    fn fifo(path: &Path) {
        mknodat(CWD, path, Node::Fifo, 0o600.into(), 0).unwrap();
    }

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        fs::write(path("victim"), "precious").unwrap();
        symlink(path("victim"), path("link")).unwrap();
        symlink(path("nothing"), path("dangling")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        fifo(&path("fifo"));
        let _listener = UnixListener::bind(path("socket")).unwrap();
        for (name, found) in [
            ("link", "a symbolic link"),
            ("dangling", "a symbolic link"),
            ("folder", "a folder"),
            ("fifo", "a FIFO"),
            ("socket", "a socket"),
        ] {
            for (opener, open) in OPENERS {
                let error = open(&path(name)).expect_err(opener);
                assert_eq!(error.source.kind(), ErrorKind::InvalidData, "{opener}: {error}");
                assert!(error.to_string().ends_with(found), "{opener}: {error}");
            }
        }
        let null = open_to_read(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(null.ends_with("it is a device"), "{null}");
        assert_eq!(fs::read(path("victim")).unwrap(), b"precious");
        assert!(!path("nothing").exists());
    }

    #[test]
    fn what_has_the_name_of_a_new_file_is_replaced_and_never_followed() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let path = folder.path().join("record.json.tmp");
        let plants: [fn(&Path, &Path); 3] = [
            |victim, path| symlink(victim, path).unwrap(),
            |_, path| fifo(path),
            |_, path| fs::write(path, "half of it, from a killed writer").unwrap(),
        ];
        for plant in plants {
            plant(&victim, &path);
            let error = create_new(&path, Mode::Run).unwrap_err();
            assert_eq!(error.source.kind(), ErrorKind::AlreadyExists);
            create_anew(&path, Mode::Run).unwrap();
            let found = fs::symlink_metadata(&path).unwrap();
            assert!(found.is_file() && found.len() == 0);
            assert_eq!(fs::read(&victim).unwrap(), b"precious");
            fs::remove_file(&path).unwrap();
        }
        fs::create_dir(&path).unwrap();
        let error = create_anew(&path, Mode::Run).unwrap_err().to_string();
        assert!(error.ends_with("cannot replace: expected a regular file, it is a folder"));
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        let file = File::create(&path).unwrap();
        file.set_len(FAR).unwrap();
        assert_eq!(read(&path, FAR).unwrap().len() as u64, FAR);
        file.set_len(3 << 30).unwrap();
        let error = read(&path, FAR).unwrap_err();
        assert_eq!(error.source.kind(), ErrorKind::InvalidData);
        let expected = "record.json: cannot read: expected at most 1048576 bytes, found 3221225472";
        assert!(error.to_string().ends_with(expected), "{error}");
    }

    /// The size of a file in `/proc` is 0.
    #[test]
    fn a_file_without_a_size_is_limited_while_it_is_read() {
        let path = Path::new("/proc/self/status");
        assert!(read(path, FAR).unwrap().len() > 100);
        let error = read(path, 100).unwrap_err().to_string();
        assert!(error.ends_with("expected at most 100 bytes, found 101"), "{error}");
    }

    #[test]
    fn a_user_may_name_a_link_and_a_pipe() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, pipe] = ["file", "link", "pipe"].map(|name| folder.path().join(name));
        fs::write(&file, "text").unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!(read_named(&link, 4).unwrap(), b"text");
        assert_eq!(read_named(&link, 3).unwrap_err().source.kind(), ErrorKind::InvalidData);
        fifo(&pipe);
        for (bytes_max, is_read) in [(4, true), (3, false)] {
            let writer = std::thread::spawn({
                let pipe = pipe.clone();
                move || fs::write(pipe, "text").unwrap()
            });
            assert_eq!(read_named(&pipe, bytes_max).is_ok(), is_read);
            writer.join().unwrap();
        }
    }

    #[test]
    fn modes_are_those_that_the_umask_leaves() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let probe = folder.path().join("probe");
        fs::write(&probe, "").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let allowed = mode(&probe); // 0666 without the umask
        for (wanted, bits) in [(Mode::Owner, 0o600), (Mode::Run, 0o640), (Mode::Umask, 0o666)] {
            create_anew(&path, wanted).unwrap();
            assert_eq!(mode(&path), bits & allowed, "{wanted:?}");
            fs::remove_file(&path).unwrap();
            open_to_append(&path, wanted).unwrap();
            assert_eq!(mode(&path), bits & allowed, "{wanted:?}");
        }
    }
}
