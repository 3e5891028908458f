//! Files that save the next run work, each with its length and digest, so that damage shows.

use std::ffi::OsString;
use std::path::PathBuf;

/// First bytes of a kind of files; they change with its format.
pub type Magic = [u8; 16];

/// Behind the magic the length of the content, 8 bytes, and its BLAKE3 digest.
const HEADER_BYTES: usize = size_of::<Magic>() + 8 + blake3::OUT_LEN;

/// Folder of a kind of files in `YARDSTICK_CACHE_DIR`, or else in `yardstick` in the user's folder
/// for caches; `None` without a home.
pub fn cache_folder(kind: &str) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    Some(base(&variable)?.join(kind))
}

fn base(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from);
    let own = || path("YARDSTICK_CACHE_DIR");
    let user = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    own().or_else(|| Some(user()?.join("yardstick")))
}

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
