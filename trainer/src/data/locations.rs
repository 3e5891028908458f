//! From the names of token files in a configuration to files of this machine.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use record::text::is_remote;

use super::cache::{Cache, CacheOptions, CachedFile};
use super::error::DataError;

/// Where named token files are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Locations {
    /// Folder that relative names are relative to.
    pub base: PathBuf,
    /// Where files of object stores are kept.
    pub cache: CacheOptions,
}

/// A token file that can be opened.
#[derive(Debug)]
pub(super) struct LocalFile {
    pub(super) path: PathBuf,
    /// Its name for people: its path or its URL.
    pub(super) name: PathBuf,
    /// BLAKE3 of its content as it was downloaded, 64 hexadecimal digits.
    pub(super) digest: Option<String>,
}

impl LocalFile {
    /// A file that was not downloaded.
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), name: path.to_owned(), digest: None }
    }
}

impl Locations {
    /// Files relative to a folder, and the cache at its usual place.
    pub fn new(base: &Path) -> Self {
        Self { base: base.to_owned(), cache: CacheOptions::default() }
    }

    /// Opens files by their names: paths, or URLs of object stores, which are downloaded unless
    /// they are on this node already. What was downloaded stays until `open` returns, and is
    /// downloaded again if that fails because of damage.
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

/// A Megatron file may be named by its index; the tokens are next to it.
pub(in crate::data) fn tokens_of(path: &Path) -> PathBuf {
    let is_index = path.extension() == Some(OsStr::new("idx"));
    if is_index { path.with_extension("bin") } else { path.to_owned() }
}
