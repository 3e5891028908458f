//! Node-local cache of token files of object stores: one download for all ranks and runs of a node.
//!
//! ```text
//! <folder>/lock                     exclusive while files are downloaded or removed, shared while
//!                                   they are opened
//!          objects/<digest>.json    URL and version of a download; its time is the last use
//!          files/<digest>/NAME      the content; the objects of one remote folder are together, as
//!                                   Megatron's index is looked for next to its tokens
//! ```
//!
//! A file is used if the store's object still has the size and the etag that it was downloaded
//! with, and if its content still has its digest, which the first pass over the file checks: a
//! cache on a bad disk costs a download, not a run. The folder is of one node; nothing here relies
//! on locks of network file systems.

mod download;
mod entry;
mod eviction;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use checkpoint::remote::RemoteOptions;
use record::files::cache_folder::cache_folder;
use record::files::{IoError, Mode, create_folders, regular_file};

use super::error::DataError;
pub(super) use download::transfer;
use entry::Entry;
pub(super) use entry::Object;

/// Folder, size limit and object store options of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheOptions {
    /// Folder of this node. By default `data` in `YARDSTICK_CACHE_DIR`, or else in `yardstick` in
    /// the user's folder for caches.
    pub folder: Option<PathBuf>,
    /// Largest size of all files together.
    pub limit_bytes: u64,
    /// Options of requests to object stores.
    pub remote: RemoteOptions,
}

impl CacheOptions {
    /// Default limit of a cache.
    pub const LIMIT_BYTES: u64 = 256 << 30;
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { folder: None, limit_bytes: Self::LIMIT_BYTES, remote: RemoteOptions::default() }
    }
}

/// Cache of this node.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    limit_bytes: u64,
    remote: RemoteOptions,
    lock: File,
}

/// File of the cache.
#[derive(Debug)]
pub(super) struct CachedFile {
    pub(super) path: PathBuf,
    /// BLAKE3 of the content, 64 hexadecimal digits.
    pub(super) digest: String,
}

/// Objects that a run needs, in their current versions in the stores.
struct Wanted {
    objects: Vec<Object>,
    /// Megatron indices that do not exist. An index cached earlier would still be taken for that of
    /// the tokens.
    absent: Vec<String>,
}

/// Number of tries to fetch a file that is damaged in the cache.
const ATTEMPTS: usize = 3;

impl Cache {
    /// Opens or creates the cache.
    pub(super) fn open(options: &CacheOptions) -> Result<Self, DataError> {
        let folder = options.folder.clone().or_else(|| cache_folder("data"));
        let folder = folder.ok_or(DataError::NoCacheFolder)?;
        create_folders(&folder.join("objects"), Mode::Umask)?;
        create_folders(&folder.join("files"), Mode::Umask)?;
        let lock = regular_file::open_to_append(&folder.join("lock"), Mode::Umask)?;
        let CacheOptions { limit_bytes, remote, .. } = options.clone();
        Ok(Self { folder, limit_bytes, remote, lock })
    }

    /// Opens the files of these URLs and downloads those that are missing. They are not removed
    /// meanwhile. If `open` fails and files are damaged, they are downloaded again.
    pub(super) fn open_files<T>(
        self,
        urls: &[String],
        open: impl Fn(Vec<CachedFile>) -> Result<T, DataError>,
    ) -> Result<T, DataError> {
        let wanted = Wanted::find(urls, &self.remote)?;
        let mut found = "";
        let mut last = None;
        let mut was_intact = false;
        for _ in 0..ATTEMPTS {
            let Some(files) = self.provide(urls, &wanted)? else {
                found = "files that other runs remove again: is run.data_cache_bytes too small?";
                continue;
            };
            found = "files with other bytes than were written";
            let opened = if self.has_intact_indices(urls, &wanted) {
                open(files)
            } else {
                Err(self.unusable(found))
            };
            match opened {
                Err(error) if error.is_damage() => {
                    let is_intact = !self.discard_damaged(&wanted)?;
                    // Another rank may have downloaded it again, once.
                    if is_intact && was_intact {
                        return Err(error);
                    }
                    was_intact = is_intact;
                    last = Some(error);
                }
                opened => return opened,
            }
        }
        Err(last.filter(|_| was_intact).unwrap_or_else(|| self.unusable(found)))
    }

    fn unusable(&self, found: &str) -> DataError {
        let expected = "downloaded files that stay and read back as they were written".to_owned();
        DataError::BadCache { folder: self.folder.clone(), expected, found: found.to_owned() }
    }

    /// Returns whether the indices match their digests. The scan of the tokens checks those.
    fn has_intact_indices(&self, urls: &[String], wanted: &Wanted) -> bool {
        let mut indices = wanted.objects.iter().filter(|object| !urls.contains(&object.url));
        indices.all(|object| self.is_intact(object))
    }

    /// Returns the files, under the shared lock; `None` if they are gone again after a download.
    fn provide(
        &self,
        urls: &[String],
        wanted: &Wanted,
    ) -> Result<Option<Vec<CachedFile>>, DataError> {
        self.lock_with(File::lock_shared)?;
        if !self.has(wanted) {
            self.fetch(wanted)?;
            self.lock_with(File::lock_shared)?; // others may have the lock in between
        }
        let entries: Option<Vec<_>> =
            wanted.objects.iter().map(|object| self.entry(object)).collect();
        let Some(entries) = entries else { return Ok(None) };
        entries.iter().for_each(|entry| entry.touch(&self.entry_path(&entry.url)));
        let file = |url: &String| {
            let entry = entries.iter().find(|entry| entry.url == *url)?;
            Some(CachedFile { path: self.file(url), digest: entry.digest.clone() })
        };
        Ok(urls.iter().map(file).collect())
    }

    /// Returns whether everything is present, and no index that the store does not have.
    fn has(&self, wanted: &Wanted) -> bool {
        let Wanted { objects, absent } = wanted;
        objects.iter().all(|object| self.entry(object).is_some())
            && !absent.iter().any(|url| self.file(url).exists())
    }

    /// Downloads missing files, after making room for them.
    fn fetch(&self, wanted: &Wanted) -> Result<(), DataError> {
        self.lock_with(File::lock)?;
        wanted.absent.iter().try_for_each(|url| self.discard(url))?;
        self.evict(&wanted.objects)?;
        let absent = |object: &&Object| self.entry(object).is_none(); // another rank was first
        wanted.objects.iter().filter(absent).try_for_each(|object| self.download(object))
    }

    /// Removes damaged files, and returns whether there were any. Holds the exclusive lock, which
    /// one of the ranks that found the damage gets first.
    fn discard_damaged(&self, wanted: &Wanted) -> Result<bool, DataError> {
        self.lock_with(File::lock)?;
        let mut is_any = false;
        for Object { url, .. } in wanted.objects.iter().filter(|object| !self.is_intact(object)) {
            tracing::warn!("{}: damaged or gone, downloaded again", self.file(url).display());
            self.discard(url)?;
            is_any = true;
        }
        Ok(is_any)
    }

    /// Returns the entry of an object's file, if that is of this version of the object.
    fn entry(&self, object: &Object) -> Option<Entry> {
        let entry = Entry::read(&self.entry_path(&object.url))?;
        let size = fs::metadata(self.file(&object.url)).ok()?.len();
        (entry.is_of(object) && size == entry.size_bytes).then_some(entry)
    }

    fn is_intact(&self, object: &Object) -> bool {
        let Some(entry) = self.entry(object) else { return false };
        entry::digest(&self.file(&object.url)).is_ok_and(|digest| digest == entry.digest)
    }

    /// Removes a file and its entry: the entry first, as a file without an entry is not used.
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
                Err(error) if is(&error, ErrorKind::NotFound) => wanted.absent.push(index),
                Err(error)
                    if is(&error, ErrorKind::PermissionDenied)
                        && denies_what_is_absent(url, options)? =>
                {
                    tracing::warn!(
                        "{error}; taken for absent, as that is the answer for every object that \
                         does not exist, without permission to list the bucket (s3:ListBucket)"
                    );
                    wanted.absent.push(index);
                }
                found => wanted.objects.push(found?),
            }
        }
        Ok(wanted)
    }
}

fn is(error: &DataError, kind: ErrorKind) -> bool {
    matches!(error, DataError::Io(error) if error.source.kind() == kind)
}

/// Returns whether a store that gives an object denies a neighbour that surely does not exist.
fn denies_what_is_absent(url: &str, options: &RemoteOptions) -> Result<bool, DataError> {
    let absent = format!("{url}.{}.bin", std::process::id());
    let is_denied =
        Object::find(&absent, options).is_err_and(|error| is(&error, ErrorKind::PermissionDenied));
    Object::find(url, options)?; // the credentials are still valid
    Ok(is_denied)
}

/// Number of digits in the names of folders and entries.
const SHORT_DIGEST_DIGITS: usize = 16;

fn short_digest(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..SHORT_DIGEST_DIGITS].to_owned()
}
