//! Files that save the next run work, each with its length and digest, so that a damaged one shows.
//!
//! A file is written to a temporary file beside it and renamed, so that processes of one machine
//! never see half of a file.

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};

/// First bytes of a kind of files; they change with its format.
pub type Magic = [u8; 16];

/// Behind the magic the length of the content, 8 bytes, and its BLAKE3 digest.
const HEADER_BYTES: usize = size_of::<Magic>() + 8 + blake3::OUT_LEN;

/// Folder of a kind of files in `YARDSTICK_CACHE_DIR`, or else in `yardstick` in the user's folder
/// for caches; `None` without a home.
pub fn folder(kind: &str) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    Some(base(&variable)?.join(kind))
}

fn base(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from);
    let own = || path("YARDSTICK_CACHE_DIR");
    let user = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    own().or_else(|| Some(user()?.join("yardstick")))
}

/// Reads the content of a file.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if the file is damaged or of another kind; those of the system.
pub fn read(path: &Path, magic: &Magic) -> io::Result<Vec<u8>> {
    let mut file = fs::read(path)?;
    let is_whole = |content: &[u8]| header(magic, content)[..] == file[..HEADER_BYTES];
    if !file.get(HEADER_BYTES..).is_some_and(is_whole) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is damaged"));
    }
    file.drain(..HEADER_BYTES);
    Ok(file)
}

/// Writes a file atomically: readers see it as a whole or not at all.
///
/// # Errors
/// Those of the system.
pub fn write(path: &Path, magic: &Magic, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // Random, because the folder may be shared by machines.
    let number = RandomState::new().build_hasher().finish();
    let temporary = path.with_extension(format!("{number:016x}.partial"));
    let sealed = [&header(magic, content)[..], content].concat();
    let written = fs::write(&temporary, sealed).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn header(magic: &Magic, content: &[u8]) -> Vec<u8> {
    let mut header = magic.to_vec();
    header.extend((content.len() as u64).to_le_bytes());
    header.extend(blake3::hash(content).as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_the_one_that_was_named_or_the_user_s() {
        let folder_with = |variables: &[(&str, &str)]| {
            base(&|name| {
                let (_, value) = variables.iter().find(|(known, _)| *known == name)?;
                Some(value.into())
            })
        };
        let home = ("HOME", "/h");
        assert_eq!(folder_with(&[home]), Some("/h/.cache/yardstick".into()));
        let user = ("XDG_CACHE_HOME", "/x");
        assert_eq!(folder_with(&[home, user]), Some("/x/yardstick".into()));
        let own = ("YARDSTICK_CACHE_DIR", "/y");
        assert_eq!(folder_with(&[home, user, own]), Some("/y".into()));
        assert_eq!(folder_with(&[]), None);
    }
}
