//! A tier on real files, one of which cannot be read now, also by root: as on a hung server.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::durable::{IoError, Published};
use checkpoint::tier::{Entry, LocalTier, Reader, Tier, Upload};
use checkpoint::{Identity, Store};

use crate::support::SMALL;

/// The store of a run, without the file whose key ends like this.
pub(crate) fn open(root: &Path, file: &str) -> Store {
    let tier = Unreadable { inner: LocalTier::new(root), file: file.to_owned() };
    let identity = Identity::new("run-1", "workload-1");
    Store::open(Arc::new(tier), &identity).expect("store opens").with_options(SMALL)
}

#[derive(Debug)]
struct Unreadable {
    inner: LocalTier,
    file: String,
}

impl Unreadable {
    fn check(&self, key: &str) -> Result<(), IoError> {
        if !key.ends_with(&self.file) {
            return Ok(());
        }
        Err(IoError::at(&self.path(key), "read")(io::Error::from(io::ErrorKind::TimedOut)))
    }
}

impl Tier for Unreadable {
    fn path(&self, key: &str) -> PathBuf {
        self.inner.path(key)
    }

    fn read(&self, key: &str, bytes_max: u64) -> Result<Vec<u8>, IoError> {
        self.check(key)?;
        self.inner.read(key, bytes_max)
    }

    fn open(&self, key: &str) -> Result<Box<dyn Reader>, IoError> {
        self.check(key)?;
        self.inner.open(key)
    }

    fn exists(&self, key: &str) -> Result<bool, IoError> {
        self.inner.exists(key)
    }

    fn replace(&self, key: &str, bytes: &[u8]) -> Result<(), IoError> {
        self.inner.replace(key, bytes)
    }

    fn publish(
        &self,
        key: &str,
        bytes: &[u8],
        midway: &mut dyn FnMut(),
    ) -> Result<Published, IoError> {
        self.inner.publish(key, bytes, midway)
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>, IoError> {
        self.inner.create(key)
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>, IoError> {
        self.inner.list(folder)
    }

    fn delete(&self, key: &str) -> Result<(), IoError> {
        self.inner.delete(key)
    }

    fn delete_folder(&self, folder: &str, last: &str) -> Result<(), IoError> {
        self.inner.delete_folder(folder, last)
    }
}
