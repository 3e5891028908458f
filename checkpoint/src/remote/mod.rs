//! Object stores: S3 and compatible stores, Google Cloud Storage, Azure. Calls block, have a
//! deadline, and retry failures that may pass.
//!
//! Keys are relative to the URL that was opened. Credentials and endpoint come from the environment
//! (`address.rs` lists the variables). Errors carry the URL as their path, and the kinds
//! [`NotFound`](std::io::ErrorKind::NotFound),
//! [`PermissionDenied`](std::io::ErrorKind::PermissionDenied) and
//! [`TimedOut`](std::io::ErrorKind::TimedOut) where they apply.
//!
//! An object appears as a whole, and is durable, when a call returns. There is no rename, so the
//! commit of writers that compete is [`Remote::put_exclusive`].

mod address;
mod aws_profile;
mod exclusive;
mod failure;
mod ini;
mod limited;
mod multipart;
mod options;
mod provider;
mod retry;
mod settings;
mod silence;
mod transport;
mod upload_journal;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use std::{fmt, io};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::multipart::MultipartStore;
use object_store::path::Path as Location;
use object_store::{Error, GetOptions, GetResult, ObjectStore, ObjectStoreExt};
use tokio::time::timeout;

pub use address::require_no_secret;
pub use exclusive::ExclusivePut;
use failure::{SHORT_BODY, Stalled, is_absent, to_io};
use limited::collect;
pub use multipart::Multipart;
pub use options::RemoteOptions;
use record::files::IoError;
use record::text::redacted;
pub use settings::check_proxy;
use silence::Silence;
pub use silence::on_silence;
use transport::runtime;

/// Traits that all clients of `object_store` implement.
trait Client: ObjectStore + MultipartStore {}

impl<T: ObjectStore + MultipartStore> Client for T {}

/// A prefix of an object store.
#[derive(Clone)]
pub struct Remote {
    url: String, // without a slash at its end
    prefix: Location,
    client: Arc<dyn Client>,
    options: RemoteOptions,
    /// Hint for a user whom the store refuses.
    hint: Option<&'static str>,
    silence: Arc<Mutex<Silence>>,
}

/// Metadata of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Size of the object.
    pub size_bytes: u64,
    /// Time at which it was written, by the store's clock.
    pub modified: SystemTime,
    /// Changes with the content.
    pub etag: Option<String>,
}

/// Sorted entries directly under a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// Names that have objects under them.
    pub folders: Vec<String>,
    /// Names of objects.
    pub objects: Vec<String>,
}

impl Remote {
    /// Prepares access to `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.
    /// Nothing is sent.
    ///
    /// # Errors
    /// When the URL or a setting of the environment is not valid.
    pub fn open(url: &str) -> Result<Self, IoError> {
        Self::open_with(url, RemoteOptions::default())
    }

    /// [`Remote::open`] with other deadlines.
    ///
    /// # Errors
    /// As [`Remote::open`].
    pub fn open_with(url: &str, options: RemoteOptions) -> Result<Self, IoError> {
        let url = url.trim_end_matches('/');
        let opened = address::connect(url, &options);
        let address::Address { prefix, client, hint, silence } =
            opened.map_err(IoError::at(Path::new(&redacted(url)), "use the object store"))?;
        Ok(Self { url: url.to_owned(), prefix, client, options, hint, silence })
    }

    /// The URL of a key, for messages; the empty key is the prefix itself.
    pub fn url(&self, key: &str) -> PathBuf {
        if key.is_empty() { self.url.clone() } else { format!("{}/{key}", self.url) }.into()
    }

    /// Returns all bytes of an object of at most `bytes_max`.
    ///
    /// # Errors
    /// When it does not exist or cannot be read; with the kind
    /// [`InvalidData`](io::ErrorKind::InvalidData) when it is larger.
    pub fn read(&self, key: &str, bytes_max: u64) -> Result<Bytes, IoError> {
        self.get(key, GetOptions::default(), bytes_max)
    }

    /// The bytes of a range, all of it. With an `etag`, only of the object that has it.
    ///
    /// # Errors
    /// When the object does not exist, ends before the range, has another etag, or cannot be read.
    pub fn read_range(
        &self,
        key: &str,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, IoError> {
        if range.is_empty() {
            return Ok(Bytes::new()); // HTTP has no empty ranges
        }
        let expected = range.end - range.start;
        let if_match = etag.map(str::to_owned);
        let options = GetOptions { range: Some(range.into()), if_match, ..Default::default() };
        let bytes = self.get(key, options, expected)?;
        if bytes.len() as u64 != expected {
            let found = format!("expected {expected} bytes, received {}", bytes.len());
            let source = io::Error::new(io::ErrorKind::UnexpectedEof, found);
            return Err(IoError::at(&self.url(key), "read")(source));
        }
        Ok(bytes)
    }

    /// Returns the size and etag of an object.
    ///
    /// # Errors
    /// When it does not exist, or the store cannot answer.
    pub fn stat(&self, key: &str) -> Result<ObjectInfo, IoError> {
        let found = self.run(key, "stat", 0, async |location| self.client.head(location).await)?;
        let modified = found.last_modified.into();
        Ok(ObjectInfo { size_bytes: found.size, modified, etag: found.e_tag })
    }

    /// Returns whether an object exists.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn exists(&self, key: &str) -> Result<bool, IoError> {
        match self.stat(key) {
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// Creates or replaces an object.
    ///
    /// # Errors
    /// When it cannot be written. It may have been, if only the answer was lost.
    pub fn put(&self, key: &str, bytes: impl Into<Bytes>) -> Result<(), IoError> {
        let bytes = bytes.into();
        self.run(key, "write", bytes.len() as u64, async |location| {
            self.client.put(location, bytes.clone().into()).await
        })?;
        Ok(())
    }

    /// Lists the entries directly under a folder; one that does not exist is empty.
    ///
    /// # Errors
    /// When it cannot be listed.
    pub fn list(&self, folder: &str) -> Result<Listing, IoError> {
        let found = self.run(folder, "list", 0, async |prefix| {
            self.client.list_with_delimiter(Some(prefix)).await
        })?;
        let name = |location: &Location| location.filename().map(str::to_owned);
        let mut listing = Listing {
            folders: found.common_prefixes.iter().filter_map(name).collect(),
            objects: found.objects.iter().filter_map(|object| name(&object.location)).collect(),
        };
        listing.folders.sort_unstable();
        listing.objects.sort_unstable();
        Ok(listing)
    }

    /// The keys of all objects under a folder, at any depth, sorted.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn list_all(&self, folder: &str) -> Result<Vec<String>, IoError> {
        let found = self.run(folder, "list", 0, async |prefix| {
            self.client.list(Some(prefix)).try_collect::<Vec<_>>().await
        })?;
        let root = self.prefix.as_ref();
        let mut keys = Vec::with_capacity(found.len());
        for object in found {
            let key = object.location.as_ref().strip_prefix(root).unwrap_or_default();
            keys.push(key.trim_start_matches('/').to_owned());
        }
        keys.sort_unstable();
        Ok(keys)
    }

    /// Removes an object; one that does not exist is fine.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn delete(&self, key: &str) -> Result<(), IoError> {
        self.run(key, "delete", 0, async |location| match self.client.delete(location).await {
            Err(error) if is_absent(&error) => Ok(()),
            deleted => deleted,
        })
    }

    /// Removes many objects, a thousand in a request where the store can; those that do not exist
    /// are ignored.
    ///
    /// # Errors
    /// When one cannot be removed, with its URL; other objects may be removed then.
    pub fn delete_many(&self, keys: &[String]) -> Result<(), IoError> {
        const PAGE: usize = 1000;
        for page in keys.chunks(PAGE) {
            let locations = page.iter().map(|key| self.location(key));
            let locations = locations.collect::<Result<Vec<_>, _>>()?;
            self.run("", "delete objects under it", 0, async |_| {
                let locations = stream::iter(locations.clone().into_iter().map(Ok)).boxed();
                let mut deleted = self.client.delete_stream(locations);
                while let Some(result) = deleted.next().await {
                    result.map(|_| ()).or_else(|e| if is_absent(&e) { Ok(()) } else { Err(e) })?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn get(&self, key: &str, options: GetOptions, bytes_max: u64) -> Result<Bytes, IoError> {
        self.run(key, "read", self.options.largest_body_bytes, async |location| {
            loop {
                let found = self.client.get_opts(location, options.clone()).await?;
                check_etag(&found, options.if_match.as_deref())?;
                let expected_bytes = body_bytes(&found);
                let allowed = self.options.request_timeout(expected_bytes);
                if let Ok(received) = timeout(allowed, collect(found, bytes_max)).await {
                    return check_length(received?, expected_bytes);
                } // else the body stalled: again, until the deadline of `run`
            }
        })
    }

    /// Runs an idempotent call with a deadline. The client below has retried what may pass and
    /// returns its error before that; the deadline is for answers that never end.
    fn run<T>(
        &self,
        key: &str,
        operation: &'static str,
        body_bytes: u64,
        call: impl AsyncFn(&Location) -> object_store::Result<T>,
    ) -> Result<T, IoError> {
        let location = self.location(key)?;
        self.run_raw(body_bytes, async || self.repeat(async || call(&location).await).await)
            .and_then(|result| result.map_err(|error| self.explain(to_io(error))))
            .map_err(IoError::at(&self.url(key), operation))
    }

    /// Adds the hint: the machine may have no credentials, or others than the user has meant.
    fn explain(&self, error: io::Error) -> io::Error {
        use io::ErrorKind::{NotConnected, PermissionDenied, TimedOut};
        match (self.hint, error.kind()) {
            (Some(hint), kind @ (NotConnected | PermissionDenied | TimedOut)) => {
                io::Error::new(kind, format!("{error} ({hint})"))
            }
            _ => error,
        }
    }

    fn run_raw<T>(
        &self,
        body_bytes: u64,
        call: impl AsyncFnOnce() -> object_store::Result<T>,
    ) -> io::Result<object_store::Result<T>> {
        let deadline = self.options.deadline(body_bytes);
        let finished = runtime()?.block_on(async {
            silence::watch(&self.silence, &self.url, timeout(deadline, call())).await
        });
        finished.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, Stalled(deadline)))
    }

    fn location(&self, key: &str) -> Result<Location, IoError> {
        let full = format!("{}/{key}", self.prefix);
        let parsed = Location::parse(full.trim_matches('/'));
        parsed.map_err(|error| {
            let source = io::Error::new(io::ErrorKind::InvalidInput, error);
            IoError::at(&self.url(key), "use the key")(source)
        })
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({})", self.url)
    }
}

/// Checks the etag of an answer: some servers ignore `If-Match` of reads.
fn check_etag(found: &GetResult, expected: Option<&str>) -> object_store::Result<()> {
    let etag = found.meta.e_tag.as_deref();
    if expected.is_none() || etag == expected {
        return Ok(());
    }
    Err(Error::Precondition {
        path: found.meta.location.to_string(),
        source: format!("the object was replaced: expected {expected:?}, found {etag:?}").into(),
    })
}

fn body_bytes(found: &GetResult) -> u64 {
    found.range.end - found.range.start
}

/// Checks the length of a body: some proxies cut it and correct its length, but not its range.
fn check_length(body: Bytes, expected_bytes: u64) -> object_store::Result<Bytes> {
    if body.len() as u64 == expected_bytes {
        return Ok(body);
    }
    let found = format!("{SHORT_BODY}{expected_bytes} bytes, received {}", body.len());
    Err(Error::Generic { store: "object store", source: found.into() })
}
