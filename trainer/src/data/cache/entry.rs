//! Metadata of an object and of the file that it was downloaded to.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::SystemTime;

use checkpoint::remote::{ObjectInfo, Remote, RemoteOptions};
use record::files::{self, IoError, Mode, regular_file};
use serde::{Deserialize, Serialize};

use crate::data::error::DataError;
use crate::data::mapped_file::MappedFile;
use record::limits::NOTE_BYTES_MAX;

/// Object in its current version in the store.
#[derive(Debug)]
pub(in crate::data) struct Object {
    pub(super) url: String,
    /// Folder of the object.
    pub(super) remote: Remote,
    /// Name of the object in the folder.
    pub(super) name: String,
    pub(in crate::data) info: ObjectInfo,
}

/// File of the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) url: String,
    pub(super) etag: Option<String>,
    pub(super) size_bytes: u64,
    /// BLAKE3 of the content, 64 hexadecimal digits.
    pub(super) digest: String,
}

impl Object {
    /// Looks up the object in the store.
    pub(in crate::data) fn find(url: &str, options: &RemoteOptions) -> Result<Self, DataError> {
        let (folder, name) = url.rsplit_once('/').unwrap_or((url, ""));
        if folder.ends_with('/') || name.is_empty() {
            let expected = io::Error::new(ErrorKind::InvalidInput, "expected scheme://bucket/key");
            return Err(IoError::at(Path::new(url), "use the object")(expected).into());
        }
        let remote = Remote::open_with(folder, options.clone())?;
        let info = remote.stat(name)?;
        Ok(Self { url: url.to_owned(), remote, name: name.to_owned(), info })
    }
}

impl Entry {
    /// Reads the entry; `None` if the file is missing or unreadable: then nothing can be relied on.
    pub(super) fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&regular_file::read(path, NOTE_BYTES_MAX).ok()?).ok()
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), IoError> {
        let bytes = serde_json::to_vec(self).map_err(IoError::at(path, "write"))?;
        files::replace_with(path, &bytes, Mode::Umask)
    }

    /// Marks the entry as used now.
    pub(super) fn touch(&self, path: &Path) {
        let touched = regular_file::open_to_write(path).and_then(|file| {
            file.set_modified(SystemTime::now()).map_err(IoError::at(path, "set the time of"))
        });
        if let Err(error) = touched {
            tracing::warn!("{}: may be removed from the cache early: {error}", self.url);
        }
    }

    /// Returns whether the store still has the downloaded version.
    pub(super) fn is_of(&self, object: &Object) -> bool {
        let ObjectInfo { size_bytes, etag, .. } = &object.info;
        (&self.url, &self.size_bytes, &self.etag) == (&object.url, size_bytes, etag)
    }
}

/// Returns BLAKE3 of a file's content, computed on the threads of the current rayon pool.
pub(super) fn digest(path: &Path) -> Result<String, DataError> {
    let bytes = MappedFile::open(path)?;
    Ok(blake3::Hasher::new().update_rayon(&bytes).finalize().to_hex().to_string())
}
