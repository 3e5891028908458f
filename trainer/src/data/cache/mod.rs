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

use checkpoint::durable::{IoError, Mode, create_folders, regular_file};
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

/// What a run needs, as the stores have it now.
struct Wanted {
    objects: Vec<Object>,
    /// Megatron indices that are not there. One of an earlier time would still be taken for that of
    /// the tokens.
    absent: Vec<String>,
}

/// How often a file that is damaged in the cache is fetched again.
const ATTEMPTS: usize = 3;

impl Cache {
    /// Opens or creates the cache.
    pub(super) fn open(options: &CacheOptions) -> Result<Self, DataError> {
        let folder = options.folder.clone().or_else(default_folder);
        let folder = folder.ok_or(DataError::NoCacheFolder)?;
        create_folders(&folder.join("objects"), Mode::Umask)?;
        create_folders(&folder.join("files"), Mode::Umask)?;
        let lock = regular_file::open_to_append(&folder.join("lock"), Mode::Umask)?;
        let CacheOptions { limit_bytes, remote, .. } = options.clone();
        Ok(Self { folder, limit_bytes, remote, lock })
    }

    /// The files of these URLs, downloaded where they are not there yet.
    pub(super) fn provide(self, urls: &[String]) -> Result<CachedFiles, DataError> {
        let wanted = Wanted::find(urls, &self.remote)?;
        for _ in 0..ATTEMPTS {
            self.fetch(&wanted)?;
            self.lock_with(File::lock_shared)?;
            if wanted.objects.iter().all(|object| self.is_intact(object)) {
                let paths = urls.iter().map(|url| self.file(url)).collect();
                return Ok(CachedFiles { paths, _lock: self.lock });
            }
            self.discard_damaged(&wanted)?;
        }
        let expected = "files that read back as they were written".to_owned();
        Err(DataError::BadCache { folder: self.folder, expected, found: "other bytes".to_owned() })
    }

    /// Downloads what is not there, after making room for it.
    fn fetch(&self, wanted: &Wanted) -> Result<(), DataError> {
        self.lock_with(File::lock)?;
        wanted.absent.iter().try_for_each(|url| self.discard(url))?;
        self.make_room(&wanted.objects)?;
        for object in &wanted.objects {
            match self.entry(object) {
                Some(entry) => entry.touch(&self.entry_path(&object.url)),
                None => self.download(object)?,
            }
        }
        Ok(())
    }

    /// Under the exclusive lock, which one of the ranks that found the damage gets first.
    fn discard_damaged(&self, wanted: &Wanted) -> Result<(), DataError> {
        self.lock_with(File::lock)?;
        for Object { url, .. } in wanted.objects.iter().filter(|object| !self.is_intact(object)) {
            tracing::warn!("{}: damaged, fetched again", self.file(url).display());
            self.discard(url)?;
        }
        Ok(())
    }

    /// What is known of an object's file, if that is of this version of the object.
    fn entry(&self, object: &Object) -> Option<Entry> {
        let entry = Entry::read(&self.entry_path(&object.url))?;
        let size = fs::metadata(self.file(&object.url)).ok()?.len();
        (entry.is_of(object) && size == entry.size_bytes).then_some(entry)
    }

    fn is_intact(&self, object: &Object) -> bool {
        let Some(entry) = self.entry(object) else { return false };
        entry::digest(&self.file(&object.url)).is_ok_and(|digest| digest == entry.digest)
    }

    /// Removes a file and what is known of it: first that, as a file without it is not used.
    fn discard(&self, url: &str) -> Result<(), IoError> {
        for path in [self.entry_path(url), self.file(url)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(IoError::at(&path, "remove")(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn file(&self, url: &str) -> PathBuf {
        let (folder, name) = url.rsplit_once('/').unwrap_or(("", url));
        self.folder.join("files").join(short_digest(folder)).join(name)
    }

    fn entry_path(&self, url: &str) -> PathBuf {
        self.folder.join("objects").join(short_digest(url)).with_extension("json")
    }

    fn lock_with(&self, lock: fn(&File) -> std::io::Result<()>) -> Result<(), IoError> {
        lock(&self.lock).map_err(IoError::at(&self.folder.join("lock"), "lock"))
    }
}

impl Wanted {
    fn find(urls: &[String], options: &RemoteOptions) -> Result<Self, DataError> {
        let mut wanted = Self { objects: Vec::new(), absent: Vec::new() };
        for url in urls {
            wanted.objects.push(Object::find(url, options)?);
            let index = Path::new(url).with_extension("idx").to_string_lossy().into_owned();
            match Object::find(&index, options) {
                Err(DataError::Io(error)) if error.source.kind() == ErrorKind::NotFound => {
                    wanted.absent.push(index);
                }
                found => wanted.objects.push(found?),
            }
        }
        Ok(wanted)
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
