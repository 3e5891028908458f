//! Promotion: committed checkpoints are copied to a farther tier in the background.
//!
//! There is no collective: a slow tier delays nobody. Rank 0 chooses the newest checkpoint that was
//! submitted and announces it on the target. Each rank copies its shards, every byte verified while
//! it is read, and its index last: an index on the target vouches that this attempt has written or
//! verified the rank's shards there. When all indexes are there, rank 0 checks them against the
//! manifest, publishes the manifest, and applies retention on the target.
//!
//! ```text
//! <target>/PROMOTION.json                               what rank 0 promotes or has promoted last
//!          s000012500-a0003-9f2c61ab/r00001.refused     why rank 1 cannot copy its files
//! ```
//!
//! **After a restart** the caller submits the checkpoint that it restored, with an assignment of
//! its files to the ranks whose disks have them. Rank 0 removes the indexes that an earlier attempt
//! left. Shards that it left are checked by their digests: good ones are not sent again, bad ones
//! are replaced. A checkpoint that is committed on the target is complete if its indexes and the
//! sizes of its files are right; otherwise the wrong files are replaced. No file on the source
//! records that a promotion is due, because the restore has already found a checkpoint that all
//! ranks agree on and whose bytes are right, and older ones need no promotion. A mark in each
//! node's folder could be wrong: after a crash between the commits of two nodes, their marks would
//! name different checkpoints.
//!
//! **Retention on the source** leaves the checkpoint that is being promoted, and the newest that
//! waits; so each route may keep two checkpoints more there. Without that, an uplink slower than
//! the cadence would never promote any. If another process removes the source, the promotion is
//! given up. Retention never relies on a copy elsewhere: each tier keeps its own newest ones.
//!
//! A promotion is given up when a rank's source is damaged or gone, when a rank delivers nothing
//! for [`PromoterOptions::stall_timeout`], or when the target fails while a newer checkpoint waits.

mod announcement;
mod assignment;
mod bandwidth;
mod copy;
mod follower;
mod leader;
mod state;
mod worker;

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use device::threads;

use crate::error::Result;
use crate::failpoints::Failpoints;
use crate::retention::Held;
use crate::store::Store;

pub use assignment::{Holding, assign};
use bandwidth::Bandwidth;
use state::Shared;
use worker::Worker;

/// Time for which a dropped promoter waits for uploads to remove their unfinished parts.
const DROP_TIMEOUT: Duration = Duration::from_secs(2);

/// Source and target of promotions.
#[derive(Debug, Clone)]
pub struct Route {
    /// View of this rank of the nearer tier: of its node, or shared by all.
    pub from: Arc<Store>,
    /// The farther tier, the same for all ranks.
    pub to: Arc<Store>,
    /// Name of the farther tier.
    pub name: String,
    /// Number of checkpoints that are kept on the target; 0 keeps all.
    pub keep: usize,
}

/// Process among those that promote. It copies the files of its own rank, and of a checkpoint that
/// was restored those that it was [assigned](Promoter::submit_restored).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Rank of this process. Rank 0 leads.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// The attempt of the run that all ranks are in, as [`Claim::attempt`](crate::Claim::attempt).
    pub attempt: u64,
}

/// Options of promotions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromoterOptions {
    /// Limit on what this process sends over all routes. Unlimited by default.
    pub bytes_per_second_max: Option<u64>,
    /// Time for which rank 0 waits for another file of the other ranks, and those for rank 0 to
    /// choose: 30 minutes by default.
    pub stall_timeout: Duration,
    /// First pause after a failure: 1 second by default. Each is twice as long as the one before.
    pub retry_pause_min: Duration,
    /// Longest pause after a failure: 1 minute by default.
    pub retry_pause_max: Duration,
}

impl Default for PromoterOptions {
    fn default() -> Self {
        Self {
            bytes_per_second_max: None,
            stall_timeout: Duration::from_secs(30 * 60),
            retry_pause_min: Duration::from_secs(1),
            retry_pause_max: Duration::from_secs(60),
        }
    }
}

/// Status of a route, as this process sees it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RouteStatus {
    /// Name of the target.
    pub tier: String,
    /// Step of the newest checkpoint that is known to be committed on the target.
    pub durable_step: Option<u64>,
    /// Name of the checkpoint that is being promoted.
    pub in_progress: Option<String>,
    /// Checkpoints that were committed on the target, in that order (noted by rank 0).
    pub promoted: Vec<Promoted>,
    /// Bytes of shards and indexes that this process has sent.
    pub bytes: u64,
    /// Time in which it has sent them, pauses for the limit on bandwidth included.
    pub seconds: f64,
    /// Tries that failed.
    pub failures: u64,
    /// Number of checkpoints that were submitted but replaced by a newer one (counted by rank 0).
    pub dropped: u64,
    /// Set if the last try failed.
    pub is_failing: bool,
    /// Reason of the last failure.
    pub last_error: Option<String>,
}

/// Checkpoint that was committed on the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promoted {
    /// Number of steps that it holds.
    pub step: u64,
    /// Bytes over all ranks.
    pub bytes: u64,
    /// Time from rank 0's start on it to the commit, failed tries included.
    pub duration: Duration,
}

/// Copies checkpoints of one process, on a thread per route. Dropping it stops the threads. An
/// unfinished promotion continues when its checkpoint is submitted to another promoter.
#[derive(Debug)]
pub struct Promoter {
    routes: Vec<Running>,
    share: Share,
}

#[derive(Debug)]
struct Running {
    from: Arc<Store>,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl Promoter {
    /// Starts the threads. Each rank calls it with the same routes.
    ///
    /// # Errors
    /// [`Error::Thread`](crate::Error::Thread).
    ///
    /// # Panics
    /// When the rank is not below the world.
    pub fn start(
        routes: Vec<Route>,
        share: Share,
        options: PromoterOptions,
        failpoints: Arc<dyn Failpoints + Send + Sync>,
    ) -> Result<Self> {
        assert!(share.rank < share.world, "{share:?}");
        let bandwidth = Bandwidth::new(options.bytes_per_second_max, Instant::now());
        let bandwidth = Arc::new(bandwidth);
        let mut promoter = Self { routes: Vec::new(), share };
        for route in routes {
            let from = Arc::clone(&route.from);
            let shared = Arc::new(Shared::new(&route.name));
            let worker = Worker {
                route,
                share,
                options,
                shared: Arc::clone(&shared),
                bandwidth: Arc::clone(&bandwidth),
                failpoints: Arc::clone(&failpoints),
                intact: RefCell::default(),
            };
            let thread = threads::spawn("promoter", move || worker.run())?;
            promoter.routes.push(Running { from, shared, thread });
        }
        Ok(promoter)
    }

    /// Promotes a committed checkpoint on one of the routes, by its position; never blocks. An
    /// older one that still waits is dropped. For every rank, after a save; each checkpoint once in
    /// an attempt.
    ///
    /// # Errors
    /// [`NoCheckpoint`](crate::Error::NoCheckpoint) when it is not the name of a checkpoint.
    ///
    /// # Panics
    /// When there is no such route.
    pub fn submit(&self, checkpoint: &str, route: usize) -> Result<()> {
        let Running { from, shared, .. } = &self.routes[route];
        let held = Held::new(from, from.parse_name(checkpoint)?);
        shared.submit(held, self.share.is_leader());
        Ok(())
    }

    /// Promotes a checkpoint that this attempt has not saved, as [`Promoter::submit`] does. This
    /// process copies the files of these saved ranks, as [`assign`] returns them. At most one
    /// checkpoint on a route.
    ///
    /// # Errors
    /// As [`Promoter::submit`].
    ///
    /// # Panics
    /// When there is no such route.
    pub fn submit_restored(
        &self,
        checkpoint: &str,
        route: usize,
        saved_ranks: Vec<usize>,
    ) -> Result<()> {
        let Running { from, shared, .. } = &self.routes[route];
        shared.assign(from.parse_name(checkpoint)?, saved_ranks);
        self.submit(checkpoint, route)
    }

    /// Returns the status of each route; does not block.
    pub fn status(&self) -> Vec<RouteStatus> {
        self.routes.iter().map(|route| route.shared.status()).collect()
    }

    /// Returns whether the last try on one of the routes, by its position, failed. Allocates
    /// nothing.
    ///
    /// # Panics
    /// When there is no such route.
    pub fn is_failing(&self, route: usize) -> bool {
        self.routes[route].shared.is_failing()
    }

    /// Returns whether a try on one of the routes, by its position, has succeeded. Allocates
    /// nothing.
    ///
    /// # Panics
    /// When there is no such route.
    pub fn has_succeeded(&self, route: usize) -> bool {
        self.routes[route].shared.has_succeeded()
    }

    /// Waits until this process has nothing left to do, and returns whether that is so. On rank 0
    /// everything is then committed or given up.
    #[must_use]
    pub fn finish(&self, deadline: Instant) -> bool {
        self.routes.iter().all(|route| route.shared.await_idle(deadline))
    }
}

impl Drop for Promoter {
    /// Storage may be hung: a thread that does not end is left alone.
    fn drop(&mut self) {
        self.routes.iter().for_each(|route| route.shared.stop());
        let deadline = Instant::now() + DROP_TIMEOUT;
        let is_running = |route: &Running| !route.thread.is_finished();
        while self.routes.iter().any(is_running) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Share {
    fn is_leader(self) -> bool {
        self.rank == 0
    }
}
