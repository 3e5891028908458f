//! Tier on real files whose reads are damaged as often as a test wants, or that refuses writes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::SystemTime;

use checkpoint::tier::{Entry, LocalTier, Reader, Tier, Upload};
use checkpoint::{Identity, Store};
use record::files::{IoError, Published};

use crate::support::SMALL;

/// Damage of a read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Damage {
    FlippedBit,
    Short,
    /// Bytes from one further on.
    WrongRange,
    /// No bytes now, also for root, as on a hung server.
    TimedOut,
    /// Reads are fine, and files of this name cannot be created.
    RefusedWrites,
}

impl Damage {
    pub(crate) const ALL: [Self; 3] = [Self::FlippedBit, Self::Short, Self::WrongRange];
}

/// Damage of the next reads of one file, and counters.
#[derive(Debug)]
pub(crate) struct Faults {
    /// End of the key.
    file: String,
    damage: Damage,
    /// Reads that are not damaged before the first one that is.
    spared: AtomicUsize,
    /// Reads that are damaged after that.
    left: AtomicUsize,
    /// Files that were read and did not exist.
    absent: AtomicUsize,
}

impl Faults {
    pub(crate) fn new(file: &str, damage: Damage, reads: usize) -> Arc<Self> {
        Self::after(0, file, damage, reads)
    }

    /// Damages `reads` reads of a file after `spared` good ones.
    pub(crate) fn after(spared: usize, file: &str, damage: Damage, reads: usize) -> Arc<Self> {
        Arc::new(Self {
            file: file.to_owned(),
            damage,
            spared: AtomicUsize::new(spared),
            left: AtomicUsize::new(reads),
            absent: AtomicUsize::new(0),
        })
    }

    pub(crate) fn none() -> Arc<Self> {
        Self::new("", Damage::Short, 0)
    }

    pub(crate) fn absent(&self) -> usize {
        self.absent.load(Relaxed)
    }

    pub(crate) fn left(&self) -> usize {
        self.left.load(Relaxed)
    }

    fn strike(&self, key: &str) -> Option<Damage> {
        let take = |counter: &AtomicUsize| {
            counter.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1)).is_ok()
        };
        let strikes = key.ends_with(&self.file) && !take(&self.spared) && take(&self.left);
        strikes.then_some(self.damage)
    }
}

/// A store of the suite's run without the file whose key ends like this: it cannot be read now.
pub(crate) fn open_without(root: &Path, file: &str) -> Store {
    open(root, &Faults::new(file, Damage::TimedOut, usize::MAX))
}

/// A store of the suite's run on a tier with these faults.
pub(crate) fn open(root: &Path, faults: &Arc<Faults>) -> Store {
    let tier = Faulty { inner: LocalTier::new(root), faults: Arc::clone(faults) };
    let identity = Identity::new("run-1", "workload-1");
    Store::open(Arc::new(tier), &identity).expect("store opens").with_options(SMALL)
}

#[derive(Debug)]
struct Faulty {
    inner: LocalTier,
    faults: Arc<Faults>,
}

impl Faulty {
    fn time_out(&self, key: &str) -> Result<(), IoError> {
        if !matches!(self.faults.damage, Damage::TimedOut) || self.faults.strike(key).is_none() {
            return Ok(());
        }
        Err(IoError::at(&self.path(key), "read")(io::Error::from(io::ErrorKind::TimedOut)))
    }

    fn refuse_write(&self, key: &str) -> Result<(), IoError> {
        let refuses = matches!(self.faults.damage, Damage::RefusedWrites);
        if !refuses || !key.ends_with(&self.faults.file) {
            return Ok(());
        }
        let refused = io::Error::from(io::ErrorKind::ReadOnlyFilesystem);
        Err(IoError::at(&self.path(key), "create")(refused))
    }
}

impl Tier for Faulty {
    fn path(&self, key: &str) -> PathBuf {
        self.inner.path(key)
    }

    fn read(&self, key: &str, bytes_max: u64) -> Result<Vec<u8>, IoError> {
        self.time_out(key)?;
        let read = self.inner.read(key, bytes_max);
        self.faults.absent.fetch_add(usize::from(read.is_err()), Relaxed);
        let mut bytes = read?;
        match self.faults.strike(key) {
            Some(Damage::FlippedBit) => bytes[100] ^= 1,
            Some(Damage::Short) => bytes.truncate(100),
            Some(Damage::WrongRange) => bytes.rotate_left(1),
            Some(Damage::TimedOut | Damage::RefusedWrites) | None => {}
        }
        Ok(bytes)
    }

    fn open(&self, key: &str) -> Result<Box<dyn Reader>, IoError> {
        self.time_out(key)?;
        let (inner, faults) = (self.inner.open(key)?, Arc::clone(&self.faults));
        Ok(Box::new(FaultyReader { inner, faults, key: key.to_owned(), path: self.path(key) }))
    }

    fn exists(&self, key: &str) -> Result<bool, IoError> {
        self.inner.exists(key)
    }

    fn replace(&self, key: &str, bytes: &[u8]) -> Result<(), IoError> {
        self.refuse_write(key)?;
        self.inner.replace(key, bytes)
    }

    fn publish(
        &self,
        key: &str,
        bytes: &[u8],
        midway: &mut dyn FnMut(),
    ) -> Result<Published, IoError> {
        self.refuse_write(key)?;
        self.inner.publish(key, bytes, midway)
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>, IoError> {
        self.refuse_write(key)?;
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

#[derive(Debug)]
struct FaultyReader {
    inner: Box<dyn Reader>,
    faults: Arc<Faults>,
    key: String,
    path: PathBuf,
}

impl Reader for FaultyReader {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn modified(&self) -> SystemTime {
        self.inner.modified()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), IoError> {
        self.inner.read_exact_at(buffer, offset)?;
        match self.faults.strike(&self.key) {
            Some(Damage::FlippedBit) => buffer[0] ^= 1,
            Some(Damage::Short) => {
                let source = io::Error::from(io::ErrorKind::UnexpectedEof);
                return Err(IoError::at(&self.path, "read")(source));
            }
            Some(Damage::WrongRange) => buffer.rotate_left(1),
            Some(Damage::TimedOut | Damage::RefusedWrites) | None => {}
        }
        Ok(())
    }
}
