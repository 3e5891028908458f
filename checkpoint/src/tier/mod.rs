//! Places that keep checkpoints: a folder of a file system, or a prefix of an object store.
//!
//! A key is a path with `/` between its parts, relative to the tier: the same on every tier. All
//! writes are atomic, and durable when they return: a file is there as a whole or not at all.

pub mod contract;
mod local;
mod object;

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use record::files::{IoError, Published};

pub use local::LocalTier;
pub use object::ObjectTier;

/// Visibility of the files of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Each node sees its own files only, as on a local disk.
    Node,
    /// All ranks see the same files, as on a shared file system or in an object store.
    Shared,
}

/// Entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Name within its folder.
    pub name: String,
    /// Set for a folder; on an object store, for a prefix of keys.
    pub is_folder: bool,
}

/// Place that keeps checkpoints. Errors name the file or the URL, and have the kind
/// [`NotFound`](std::io::ErrorKind::NotFound) where there is nothing of that key.
///
/// Several processes may use the same tier at once.
pub trait Tier: Debug + Send + Sync {
    /// Returns the path or URL of a key, for messages.
    fn path(&self, key: &str) -> PathBuf;

    /// Returns all bytes of a file of at most `bytes_max`.
    ///
    /// # Errors
    /// When it does not exist or cannot be read; with the kind
    /// [`InvalidData`](std::io::ErrorKind::InvalidData) when it is larger, of which nothing is
    /// read, or not a regular file.
    fn read(&self, key: &str, bytes_max: u64) -> Result<Vec<u8>, IoError>;

    /// Opens a file for reads of ranges.
    ///
    /// # Errors
    /// As [`Tier::read`].
    fn open(&self, key: &str) -> Result<Box<dyn Reader>, IoError>;

    /// Returns the same name to all processes that see the same disk, and another one for another
    /// disk; `None` where that is not known.
    fn disk(&self) -> Option<String> {
        None
    }

    /// Makes this machine forget what it caches of a file, where it can: the next read is then of
    /// the medium. For bytes that arrived damaged.
    fn drop_cache(&self, _key: &str) {}

    /// Returns whether a file exists.
    ///
    /// # Errors
    /// When the tier cannot answer.
    fn exists(&self, key: &str) -> Result<bool, IoError>;

    /// Creates a file or replaces it. A file has one writer at a time.
    ///
    /// # Errors
    /// The old file is then untouched, unless only its durability is in doubt.
    fn replace(&self, key: &str, bytes: &[u8]) -> Result<(), IoError>;

    /// Creates a file that must not exist. Processes that compete for a key write different bytes:
    /// the same bytes are taken for an earlier call whose answer was lost. `midway` is called when
    /// a crash would leave an unpublished part of the file, where that is possible.
    ///
    /// # Errors
    /// The file may exist all the same, if only the answer was lost. Calling again with the same
    /// bytes resolves that.
    fn publish(
        &self,
        key: &str,
        bytes: &[u8],
        midway: &mut dyn FnMut(),
    ) -> Result<Published, IoError>;

    /// Starts a file that is written piece by piece, and that nobody sees before it is finished.
    /// A file of this key must not exist.
    ///
    /// # Errors
    /// When it cannot be started.
    fn create(&self, key: &str) -> Result<Box<dyn Upload>, IoError>;

    /// Lists the entries of a folder, sorted; the empty key is the tier itself. A folder that does
    /// not exist is empty.
    ///
    /// # Errors
    /// When the tier cannot be listed.
    fn list(&self, folder: &str) -> Result<Vec<Entry>, IoError>;

    /// Removes a file; one that does not exist is fine.
    ///
    /// # Errors
    /// When it cannot be removed.
    fn delete(&self, key: &str) -> Result<(), IoError>;

    /// Removes a folder and everything in it, the file named `last` at the end and only when the
    /// rest is durably gone: while anything is left, that file marks the state of the folder. A
    /// folder that does not exist is ignored.
    ///
    /// # Errors
    /// When something cannot be removed; it may be called again.
    fn delete_folder(&self, folder: &str, last: &str) -> Result<(), IoError>;

    /// Number of uploads under a folder that have sent parts and are not completed: of an
    /// [`Upload`] in flight, or of a process that was killed. A file system has none: what is
    /// unfinished there is a file.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    fn count_open_uploads(&self, _folder: &str) -> Result<usize, IoError> {
        Ok(0)
    }

    /// Aborts the uploads under a folder that are not completed; [`Tier::delete_folder`] does it,
    /// too. One that is in flight fails then.
    ///
    /// # Errors
    /// When one may still be there; it may be called again.
    fn abort_open_uploads(&self, _folder: &str) -> Result<(), IoError> {
        Ok(())
    }
}

/// File that is read in ranges.
pub trait Reader: Debug + Send + Sync {
    /// Size of the file.
    fn size_bytes(&self) -> u64;

    /// Returns the time at which it was written, by the clock of whatever keeps it.
    fn modified(&self) -> SystemTime;

    /// Fills a buffer from an offset.
    ///
    /// # Errors
    /// When it cannot be read, or the file ends before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), IoError>;
}

/// File that is being written. Dropped before it is finished, it leaves nothing.
pub trait Upload: Debug + Send {
    /// Appends bytes.
    ///
    /// # Errors
    /// When they cannot be written.
    fn write(&mut self, bytes: &[u8]) -> Result<(), IoError>;

    /// Makes the file visible and durable under its key.
    ///
    /// # Errors
    /// When it cannot; nothing is left then, unless only the answer was lost.
    fn finish(self: Box<Self>) -> Result<(), IoError>;
}
