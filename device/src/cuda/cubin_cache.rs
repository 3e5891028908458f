//! Compiled kernels on disk, so that only the first run on a machine waits for the compiler.
//!
//! A file is named by the digest of all that decides its content, and is never changed. It is
//! written to a temporary file beside it and renamed, so that processes of one machine never see
//! half of a file. A cache that cannot be used costs time, and is no error.

use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use blake3::{Hash, Hasher};
use record::files::cache_folder::cache_folder;

use super::nvrtc::{self, Source};
use super::{Error, Libraries, Library, sealed_file};

/// First bytes of every file.
const MAGIC: &[u8; 16] = b"yardstick cubin1";

/// The machine code of a source for an architecture, from the cache or else from NVRTC.
///
/// # Errors
/// Fails if NVRTC is missing, or if the source does not compile.
pub fn get_or_compile(source: &Source<'_>, architecture: &str) -> Result<Vec<u8>, Error> {
    let compiler = identity(&Libraries::open_nvrtc()?.library);
    let compile = || Ok(nvrtc::compile(source, architecture)?.cubin);
    let Some(folder) = cache_folder("cubin") else { return compile() };
    get_or_make(&folder, key(source, architecture, &compiler), compile)
}

/// Identity of the compiler: another build of one version is another compiler.
fn identity(nvrtc: &Library) -> String {
    let file = fs::metadata(nvrtc.path()).ok();
    let bytes = file.as_ref().map_or(0, fs::Metadata::len);
    let modified = file.and_then(|file| file.modified().ok());
    let age = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    let version = nvrtc.version_text();
    format!("{version} {} {bytes} {}", nvrtc.path().display(), age.as_nanos())
}

/// The digest of all that decides the machine code.
fn key(source: &Source<'_>, architecture: &str, compiler: &str) -> Hash {
    let mut hasher = Hasher::new();
    // The length in front: two texts in a row are not the same as other two.
    let mut add = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    let Source { name, text, headers, options } = source;
    for text in [compiler, architecture, name, text] {
        add(text);
    }
    add(&headers.len().to_string());
    for (name, text) in *headers {
        add(name);
        add(text);
    }
    for option in *options {
        add(option);
    }
    hasher.finalize()
}

fn get_or_make(
    folder: &Path,
    key: Hash,
    make: impl FnOnce() -> Result<Vec<u8>, Error>,
) -> Result<Vec<u8>, Error> {
    let path = folder.join(format!("{key}.cubin"));
    if let Some(cubin) = fs::read(&path).ok().and_then(|file| sealed_file::open(MAGIC, file)) {
        return Ok(cubin);
    }
    let cubin = make()?;
    let _not_cached_is_no_error = sealed_file::publish(&path, &sealed_file::seal(MAGIC, &cubin));
    Ok(cubin)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::PathBuf;

    use super::*;

    const SOURCE: Source<'_> =
        Source { name: "k.cu", text: "text", headers: &[("h", "header")], options: &["-DA"] };

    fn refuses() -> Result<Vec<u8>, Error> {
        panic!("it is in the cache")
    }

    /// The only file in the cache.
    fn only_file(folder: &Path) -> PathBuf {
        let mut files = fs::read_dir(folder).unwrap();
        let file = files.next().unwrap().unwrap().path();
        assert!(files.next().is_none());
        file
    }

    #[test]
    fn what_was_made_is_not_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("below/cubin");
        let key = key(&SOURCE, "sm_90a", "12.9");
        assert_eq!(get_or_make(&cache, key, || Ok(vec![1, 2, 3])).unwrap(), [1, 2, 3]);
        assert_eq!(get_or_make(&cache, key, refuses).unwrap(), [1, 2, 3]);
        assert!(only_file(&cache).to_string_lossy().ends_with(".cubin"));
    }

    /// Every byte of a small file changed, and every length that a file cut short can have.
    #[test]
    fn a_damaged_file_is_made_again_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let key = key(&SOURCE, "sm_90a", "12.9");
        get_or_make(folder.path(), key, || Ok(vec![7; 5])).unwrap();
        let file = only_file(folder.path());
        let whole = fs::read(&file).unwrap();
        let changed = (0..whole.len()).map(|index| {
            let mut damaged = whole.clone();
            damaged[index] ^= 1;
            damaged
        });
        let shorter = (0..whole.len()).map(|len| whole[..len].to_vec());
        let longer = [[whole.as_slice(), &[0]].concat()];
        for damaged in changed.chain(shorter).chain(longer) {
            fs::write(&file, &damaged).unwrap();
            let calls = Cell::new(0);
            let make = || {
                calls.set(calls.get() + 1);
                Ok(vec![7; 5])
            };
            assert_eq!(get_or_make(folder.path(), key, make).unwrap(), [7; 5]);
            assert_eq!(calls.get(), 1, "{damaged:?}");
            assert_eq!(fs::read(&file).unwrap(), whole);
        }
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_no_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let below = file.path().join("cubin");
        let key = key(&SOURCE, "sm_90a", "12.9");
        assert_eq!(get_or_make(&below, key, || Ok(vec![1])).unwrap(), [1]);
    }

    #[test]
    fn what_does_not_compile_is_not_cached() {
        let folder = tempfile::tempdir().unwrap();
        let key = key(&SOURCE, "sm_90a", "12.9");
        let error = Error::NoDevice { path: "libcuda.so.1".into() };
        assert_eq!(get_or_make(folder.path(), key, || Err(error.clone())), Err(error));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn all_that_decides_the_code_is_in_the_key() {
        let same = key(&SOURCE, "sm_90a", "12.9");
        assert_eq!(same, key(&SOURCE.clone(), "sm_90a", "12.9"));
        let different = [
            key(&SOURCE, "sm_80", "12.9"),
            key(&SOURCE, "sm_90a", "13.0"),
            key(&Source { name: "l.cu", ..SOURCE }, "sm_90a", "12.9"),
            key(&Source { text: "other", ..SOURCE }, "sm_90a", "12.9"),
            key(&Source { headers: &[("h", "other")], ..SOURCE }, "sm_90a", "12.9"),
            key(&Source { headers: &[("i", "header")], ..SOURCE }, "sm_90a", "12.9"),
            key(
                &Source { headers: &[], options: &["h", "header", "-DA"], ..SOURCE },
                "sm_90a",
                "12.9",
            ),
            key(&Source { options: &["-DB"], ..SOURCE }, "sm_90a", "12.9"),
            key(&Source { options: &["-D", "A"], ..SOURCE }, "sm_90a", "12.9"),
        ];
        for (index, key) in different.iter().enumerate() {
            assert_ne!(*key, same, "{index}");
            assert!(!different[..index].contains(key), "{index}");
        }
    }
}
