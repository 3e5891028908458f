//! Resolution of token file names in a configuration to files of this machine.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use record::text::is_remote;

use super::cache::{Cache, CacheOptions, CachedFile};
use super::error::DataError;

/// Locations of named token files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Locations {
    /// Base folder of relative names.
    pub base: PathBuf,
    /// Cache for files of object stores.
    pub cache: CacheOptions,
}

/// Token file that can be opened.
#[derive(Debug)]
pub(super) struct LocalFile {
    pub(super) path: PathBuf,
    /// Path or URL, for people.
    pub(super) name: PathBuf,
    /// BLAKE3 of the downloaded content, 64 hexadecimal digits.
    pub(super) digest: Option<String>,
}

impl LocalFile {
    /// Names a file that was not downloaded.
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), name: path.to_owned(), digest: None }
    }
}

impl Locations {
    /// Resolves files relative to a folder, with the cache at its usual place.
    pub fn new(base: &Path) -> Self {
        Self { base: base.to_owned(), cache: CacheOptions::default() }
    }

    /// Opens files by their names: paths, or URLs of object stores, which are downloaded unless
    /// this node already has them. Downloaded files stay until `open` returns, and are downloaded
    /// again if it fails because of damage.
    pub(super) fn open_files<T>(
        &self,
        names: &[String],
        open: impl Fn(&[LocalFile]) -> Result<T, DataError>,
    ) -> Result<T, DataError> {
        let urls = names
            .iter()
            .filter(|name| is_remote(name))
            .map(|name| tokens_of(Path::new(name)).to_string_lossy().into_owned());
        let urls: Vec<_> = urls.collect();
        let open = |cached: Vec<CachedFile>| {
            let mut cached = cached.into_iter();
            let local = |name: &String| match is_remote(name).then(|| cached.next()).flatten() {
                Some(CachedFile { path, digest }) => {
                    LocalFile { path, name: name.into(), digest: Some(digest) }
                }
                None => LocalFile::new(&self.base.join(name)),
            };
            open(&names.iter().map(local).collect::<Vec<_>>())
        };
        match urls.as_slice() {
            [] => open(Vec::new()),
            urls => Cache::open(&self.cache)?.open_files(urls, open),
        }
    }
}

/// Returns the path of the tokens: a Megatron file may be named by its index, which is next to
/// them.
pub(in crate::data) fn tokens_of(path: &Path) -> PathBuf {
    let is_index = path.extension() == Some(OsStr::new("idx"));
    if is_index { path.with_extension("bin") } else { path.to_owned() }
}
