//! From the names of token files in a configuration to files of this machine.

use std::path::{Path, PathBuf};

use checkpoint::remote::is_remote;

use super::cache::{Cache, CacheOptions, CachedFiles};
use super::error::DataError;
use super::token_files::tokens_of;

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
}

/// Token files, none of which is removed from the cache while this value exists.
#[derive(Debug)]
pub(super) struct LocalFiles {
    pub(super) files: Vec<LocalFile>,
    _cached: Option<CachedFiles>,
}

impl Locations {
    /// Files relative to a folder, and the cache at its usual place.
    pub fn new(base: &Path) -> Self {
        Self { base: base.to_owned(), cache: CacheOptions::default() }
    }

    /// Finds files by their names: paths, or URLs of object stores, which are downloaded unless
    /// they are on this node already.
    pub(super) fn provide(&self, names: &[String]) -> Result<LocalFiles, DataError> {
        let urls = names
            .iter()
            .filter(|name| is_remote(name))
            .map(|name| tokens_of(Path::new(name)).to_string_lossy().into_owned());
        let urls: Vec<_> = urls.collect();
        let cached = match urls.as_slice() {
            [] => None,
            urls => Some(Cache::open(&self.cache)?.provide(urls)?),
        };
        let mut paths = cached.iter().flat_map(|cached| cached.paths.iter().cloned());
        let local = |name: &String| match is_remote(name).then(|| paths.next()).flatten() {
            Some(path) => LocalFile { path, name: name.into() },
            None => LocalFile { path: self.base.join(name), name: self.base.join(name) },
        };
        let files = names.iter().map(local).collect();
        Ok(LocalFiles { files, _cached: cached })
    }
}
