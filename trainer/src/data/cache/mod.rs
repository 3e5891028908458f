//! Token files of object stores, kept on the node: one download for all of its ranks and runs.
//!
//! ```text
//! <folder>/lock                     exclusive while files come and go, shared while one is opened
//!          objects/<digest>.json    what was downloaded from which URL; its time is the last use
//!          files/<digest>/NAME      the content; the objects of one remote folder are together, as
//!                                   Megatron's index is looked for next to its tokens
//! ```
//!
//! A file is used if the store's object still has the size and the etag that it was downloaded
//! with, and if its content still has the digest of then: a cache on a bad disk costs a download,
//! not a run. The folder is of one node; nothing here relies on locks of network file systems.

mod download;
mod entry;
mod room;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use checkpoint::durable::{IoError, create_folders};
use checkpoint::remote::RemoteOptions;

use super::error::DataError;
pub(super) use download::transfer;
use entry::Entry;
pub(super) use entry::Object;

/// Where the cache is and how large it may become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheOptions {
    /// Folder of this node. Without one: `data` in `YARDSTICK_CACHE_DIR`, or else in `yardstick` in
    /// the user's folder for caches.
    pub folder: Option<PathBuf>,
    /// Largest size of all files together.
    pub limit_bytes: u64,
    /// How object stores are talked to.
    pub remote: RemoteOptions,
}

impl CacheOptions {
    /// Limit of a cache that nothing else is said about.
    pub const LIMIT_BYTES: u64 = 256 << 30;
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { folder: None, limit_bytes: Self::LIMIT_BYTES, remote: RemoteOptions::default() }
    }
}

/// The cache of this node.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    limit_bytes: u64,
    remote: RemoteOptions,
    lock: File,
}

/// Files that stay as long as this value: the cache is locked for those who remove files.
#[derive(Debug)]
pub(super) struct CachedFiles {
    /// Paths, in the order of the URLs.
    pub(super) paths: Vec<PathBuf>,
    _lock: File,
}

/// How often a file that is damaged in the cache is fetched again.
const ATTEMPTS: usize = 3;

impl Cache {
    /// Opens or creates the cache.
    pub(super) fn open(options: &CacheOptions) -> Result<Self, DataError> {
        let folder = options.folder.clone().or_else(default_folder);
        let folder = folder.ok_or(DataError::NoCacheFolder)?;
        create_folders(&folder.join("objects"))?;
        create_folders(&folder.join("files"))?;
        let path = folder.join("lock");
        let lock = File::options().create(true).append(true).open(&path);
        let lock = lock.map_err(IoError::at(&path, "open"))?;
        let CacheOptions { limit_bytes, remote, .. } = options.clone();
        Ok(Self { folder, limit_bytes, remote, lock })
    }

    /// The files of these URLs, downloaded where they are not there yet.
    pub(super) fn provide(self, urls: &[String]) -> Result<CachedFiles, DataError> {
        let mut paths = Vec::new();
        let mut objects = Vec::new();
        for url in urls {
            let object = Object::find(url, &self.remote)?;
            paths.push(self.file(&object));
            objects.extend(self.companion(&object)?);
            objects.push(object);
        }
        for _ in 0..ATTEMPTS {
            self.fetch(&objects)?;
            self.lock_with(File::lock_shared)?;
            if objects.iter().all(|object| self.is_intact(object)) {
                return Ok(CachedFiles { paths, _lock: self.lock });
            }
            self.discard_damaged(&objects)?;
        }
        let expected = "files that read back as they were written".to_owned();
        Err(DataError::BadCache { folder: self.folder, expected, found: "other bytes".to_owned() })
    }

    /// Downloads what is not there, after making room for it.
    fn fetch(&self, objects: &[Object]) -> Result<(), DataError> {
        self.lock_with(File::lock)?;
        self.make_room(objects)?;
        for object in objects {
            match self.entry(object) {
                Some(entry) => entry.touch(&self.entry_path(object)),
                None => self.download(object)?,
            }
        }
        Ok(())
    }

    /// Under the exclusive lock, which one of the ranks that found the damage gets first.
    fn discard_damaged(&self, objects: &[Object]) -> Result<(), DataError> {
        self.lock_with(File::lock)?;
        for object in objects.iter().filter(|object| !self.is_intact(object)) {
            tracing::warn!("{}: damaged, fetched again", self.file(object).display());
            self.discard(&self.entry_path(object), &self.file(object))?;
        }
        Ok(())
    }

    /// Megatron's index of a token file, where the store has one.
    fn companion(&self, object: &Object) -> Result<Option<Object>, DataError> {
        let index = Path::new(&object.url).with_extension("idx");
        match Object::find(&index.to_string_lossy(), &self.remote) {
            Err(DataError::Io(error)) if error.source.kind() == ErrorKind::NotFound => {}
            found => return found.map(Some),
        }
        // One that was there before would still be taken for its index.
        let file = self.file(object).with_extension("idx");
        self.lock_with(File::lock)?;
        self.discard(&self.entry_path_of(&index.to_string_lossy()), &file)?;
        Ok(None)
    }

    /// What is known of an object's file, if that is of this version of the object.
    fn entry(&self, object: &Object) -> Option<Entry> {
        let entry = Entry::read(&self.entry_path(object))?;
        let size = fs::metadata(self.file(object)).ok()?.len();
        (entry.is_of(object) && size == entry.size_bytes).then_some(entry)
    }

    fn is_intact(&self, object: &Object) -> bool {
        let Some(entry) = self.entry(object) else { return false };
        entry::digest(&self.file(object)).is_ok_and(|digest| digest == entry.digest)
    }

    /// Removes a file and what is known of it: first that, as a file without it is not used.
    fn discard(&self, entry: &Path, file: &Path) -> Result<(), IoError> {
        for path in [entry, file] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(IoError::at(path, "remove")(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn file(&self, object: &Object) -> PathBuf {
        let (folder, name) = object.url.rsplit_once('/').unwrap_or(("", &object.url));
        self.folder.join("files").join(short_digest(folder)).join(name)
    }

    fn entry_path(&self, object: &Object) -> PathBuf {
        self.entry_path_of(&object.url)
    }

    fn entry_path_of(&self, url: &str) -> PathBuf {
        self.folder.join("objects").join(short_digest(url)).with_extension("json")
    }

    fn lock_with(&self, lock: fn(&File) -> std::io::Result<()>) -> Result<(), IoError> {
        lock(&self.lock).map_err(IoError::at(&self.folder.join("lock"), "lock"))
    }
}

fn short_digest(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}

fn default_folder() -> Option<PathBuf> {
    let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let user = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    let base = path("YARDSTICK_CACHE_DIR").or_else(|| Some(user()?.join("yardstick")))?;
    Some(base.join("data"))
}
