//! Checkpoints of one run on one tier.

mod completion;
mod description;
mod identity;
mod listing;
mod metadata;
mod presence;
mod rejection;
mod reread;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::format::index::CHUNK_BYTES_MAX;
use crate::format::name::CheckpointName;
use crate::tier::{Scope, Tier};

pub use description::{Contents, Description, FileSize};
pub use identity::Identity;
pub use listing::{Listed, Status, holds_any};
pub use presence::Presence;
use reread::ReadWarnings;

/// Sizes of the files that are written (readers find them in the files), and how long readers wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Bytes of one digest, and of one read: 16 MiB by default.
    pub chunk_bytes: u64,
    /// Largest data of one shard file, unless a single box is larger: 8 GiB by default.
    pub file_bytes_max: u64,
    /// Ranks that share one `dNN` folder: 64 by default.
    pub ranks_per_folder: usize,
    /// Time after its start for which a restore waits for files that a manifest names and that do
    /// not exist, all of them together: another machine's view of a shared file system may lag
    /// behind the commit. 5 seconds by default.
    pub visibility_timeout: Duration,
    /// Bytes that a rank sends at most, and receives at most, in one round when ranks send each
    /// other what only they can read: 64 MiB by default. That much memory, and one chunk each way.
    pub round_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            chunk_bytes: 16 << 20,
            file_bytes_max: 8 << 30,
            ranks_per_folder: 64,
            visibility_timeout: Duration::from_secs(5),
            round_bytes: 64 << 20,
        }
    }
}

/// The checkpoints of one run on one tier.
#[derive(Debug)]
pub struct Store {
    tier: Arc<dyn Tier>,
    identity: Identity,
    options: Options,
    scope: Scope,
    /// Checkpoints that this process began to save and that may be left uncommitted, on a
    /// rank that [commits](Store::is_committed_by).
    pub(crate) begun: Mutex<Vec<CheckpointName>>,
    /// Checkpoints that retention leaves alone, once for each [`Held`](crate::retention::Held).
    pub(crate) held: Mutex<Vec<CheckpointName>>,
    /// Path that a save of this process reads or writes, for the error of one that hangs.
    at: Mutex<Option<PathBuf>>,
    /// See [`Store::stop_retention`].
    pub(crate) retention_is_stopped: AtomicBool,
    /// See [`Store::take_read_warnings`].
    read_warnings: Mutex<ReadWarnings>,
}

impl Store {
    /// Opens a tier; creates its `RUN.json`, or checks the one that is there.
    ///
    /// Not collective: all ranks may call it at once.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when it is of another run or workload, [`Error::UnsupportedFormat`],
    /// [`Error::Damaged`] or [`Error::Io`].
    pub fn open(tier: Arc<dyn Tier>, identity: &Identity) -> Result<Self> {
        identity.establish(&*tier)?;
        Ok(Self::new(tier, identity.clone()))
    }

    /// Opens a tier only to read it: neither creates its `RUN.json` nor checks it, which every
    /// manifest that a restore reads is.
    #[must_use]
    pub fn without_saves(tier: Arc<dyn Tier>, identity: &Identity) -> Self {
        Self::new(tier, identity.clone())
    }

    /// Opens a tier that has checkpoints, of whichever run it is. Changes nothing.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] when there is no `RUN.json`, and as [`Store::open`].
    pub fn find(tier: Arc<dyn Tier>) -> Result<Self> {
        match Identity::read(&*tier)? {
            Some(identity) => Ok(Self::new(tier, identity)),
            None => Err(Error::NoCheckpoint { root: tier.path(""), rejected: Vec::new() }),
        }
    }

    /// Opens a tier that has checkpoints of this run. Changes nothing.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when it is of another run or workload, and as [`Store::find`].
    pub fn find_run(tier: Arc<dyn Tier>, identity: &Identity) -> Result<Self> {
        let found = Self::find(tier)?;
        let path = found.tier.path(identity::FILE);
        identity.check(&path, &found.identity.run, &found.identity.workload)?;
        Ok(found)
    }

    fn new(tier: Arc<dyn Tier>, identity: Identity) -> Self {
        Self {
            tier,
            identity,
            options: Options::default(),
            scope: Scope::Shared,
            begun: Mutex::default(),
            held: Mutex::default(),
            at: Mutex::default(),
            retention_is_stopped: AtomicBool::new(false),
            read_warnings: Mutex::default(),
        }
    }

    /// Sets other options.
    ///
    /// # Panics
    /// When one of the sizes is 0, or chunks are larger than a reader accepts (1 GiB).
    #[must_use]
    pub fn with_options(mut self, options: Options) -> Self {
        let Options { chunk_bytes, file_bytes_max, ranks_per_folder, .. } = options;
        assert!(chunk_bytes > 0 && file_bytes_max > 0 && ranks_per_folder > 0, "{options:?}");
        assert!(chunk_bytes <= CHUNK_BYTES_MAX, "{options:?}");
        self.options = options;
        self
    }

    /// Sets the scope of the tier; [`Scope::Shared`] unless this is called.
    ///
    /// With [`Scope::Node`] every rank commits, fences and removes on its own node, where only the
    /// files of the node's ranks are. So "committed" there is said of this node's part; whether all
    /// parts exist, [`Tiers`](crate::Tiers) finds out. Ranks of one node may do so at once.
    #[must_use]
    pub fn with_scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    pub(crate) fn scope(&self) -> Scope {
        self.scope
    }

    /// Returns whether this rank commits and cleans up here: rank 0, or each on its own node.
    pub(crate) fn is_committed_by(&self, rank: usize) -> bool {
        rank == 0 || self.scope == Scope::Node
    }

    pub(crate) fn tier(&self) -> &dyn Tier {
        &*self.tier
    }

    /// Returns the folder of all checkpoints, for messages.
    pub(crate) fn root(&self) -> PathBuf {
        self.tier.path("")
    }

    /// Returns the name of the disk below a tier of node scope, which several ranks may see.
    pub(crate) fn disk(&self) -> Option<String> {
        if self.scope == Scope::Node { self.tier.disk() } else { None }
    }

    /// Says what a save is about to read or write.
    pub(crate) fn set_at(&self, key: Option<&str>) {
        *self.lock_at() = key.map(|key| self.tier.path(key));
    }

    /// Returns the path that a save reads or writes.
    pub(crate) fn at(&self) -> Option<PathBuf> {
        self.lock_at().clone()
    }

    fn lock_at(&self) -> MutexGuard<'_, Option<PathBuf>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the deadline up to which an operation that starts now waits for invisible files.
    pub(crate) fn visible_until(&self) -> Instant {
        Instant::now() + self.options.visibility_timeout
    }

    /// Reads the name of a checkpoint in this store.
    pub(crate) fn parse_name(&self, text: &str) -> Result<CheckpointName> {
        text.parse().map_err(|()| self.no_checkpoint(text))
    }

    /// The error of a checkpoint that does not exist.
    pub(crate) fn no_checkpoint(&self, name: &str) -> Error {
        Error::NoCheckpoint { root: self.tier.path(name), rejected: Vec::new() }
    }
}
