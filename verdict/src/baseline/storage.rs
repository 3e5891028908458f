//! Storage of records: a folder or a prefix of an object store, which the caller opens.

use std::error::Error as StdError;
use std::fmt::Debug;
use std::path::PathBuf;

use crate::error::Error;

/// Error of reading or writing files of a store.
pub type StorageError = Box<dyn StdError + Send + Sync>;

/// Opens the folder or the prefix at a path or URL, without any access to it.
pub type OpenStorage = fn(&str) -> Result<Box<dyn Storage>, StorageError>;

/// A name in a folder of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name, without the folder.
    pub name: String,
    /// True if more names are below it.
    pub is_folder: bool,
}

/// Files of a store, by names with `/` between folders.
pub trait Storage: Debug + Send + Sync {
    /// Lists the names in a folder, sorted; none if the folder does not exist.
    ///
    /// # Errors
    /// When it cannot be listed.
    fn list(&self, folder: &str) -> Result<Vec<Entry>, StorageError>;

    /// Returns whether a file exists.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn exists(&self, name: &str) -> Result<bool, StorageError>;

    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or has more than `bytes_max`.
    fn read(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, StorageError>;

    /// Writes a file with its folders, in place of an older one.
    ///
    /// # Errors
    /// When it cannot be written.
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError>;

    /// Returns the path or URL of a file, for people.
    fn path(&self, name: &str) -> PathBuf;
}

/// Storage with the error type of this crate.
#[derive(Debug)]
pub(super) struct Opened(Box<dyn Storage>);

impl Opened {
    pub(super) fn at(open: OpenStorage, address: &str) -> Result<Self, Error> {
        open(address).map(Self).map_err(Error::store)
    }

    pub(super) fn list(&self, folder: &str) -> Result<Vec<Entry>, Error> {
        self.0.list(folder).map_err(Error::store)
    }

    pub(super) fn exists(&self, name: &str) -> Result<bool, Error> {
        self.0.exists(name).map_err(Error::store)
    }

    pub(super) fn read(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, Error> {
        self.0.read(name, bytes_max).map_err(Error::store)
    }

    pub(super) fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.0.replace(name, bytes).map_err(Error::store)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }
}
