//! Files of a cache, each with its length and digest, so that damage shows.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher as _};
use std::path::Path;
use std::{fs, io};

/// First bytes of a kind of files; they change with its format.
pub type Magic = [u8; 16];

/// Behind the magic the length of the content, 8 bytes, and its BLAKE3 digest.
const HEADER_BYTES: usize = size_of::<Magic>() + 8 + blake3::OUT_LEN;

/// Returns a file with this content.
pub fn seal(magic: &Magic, content: &[u8]) -> Vec<u8> {
    let mut file = magic.to_vec();
    file.extend((content.len() as u64).to_le_bytes());
    file.extend(blake3::hash(content).as_bytes());
    file.extend(content);
    file
}

/// Returns the content of a file; `None` if it is damaged or of another kind.
pub fn open(magic: &Magic, mut file: Vec<u8>) -> Option<Vec<u8>> {
    let content = file.get(HEADER_BYTES..)?;
    if seal(magic, content)[..HEADER_BYTES] != file[..HEADER_BYTES] {
        return None;
    }
    file.drain(..HEADER_BYTES);
    Some(file)
}

/// Publishes a file of a cache atomically: readers see it as a whole or not at all, however many
/// processes and machines write it at the same time.
///
/// # Errors
/// Those of the file system.
pub fn publish(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // Random, because the folder may be shared by machines.
    let number = RandomState::new().build_hasher().finish();
    let temporary = path.with_extension(format!("{number:016x}.partial"));
    let written = fs::write(&temporary, content).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}
