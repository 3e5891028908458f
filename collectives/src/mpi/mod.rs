//! Ranks as MPI processes.
#![allow(unsafe_code)]

mod calls;
mod exchange;
mod flight;
mod hierarchy;
mod join;
mod layout;
mod options;
mod pause;
mod plan;
mod requests;
mod share;
mod shared;
mod worker;
mod world;

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::slots::Job;
use crate::{Channel, Collective, Error, Memory, Operation, Ticket, Timing};
pub use options::MpiOptions;
use shared::{NAME, Shared};
use worker::Facts;

/// MPI can be initialised once per process.
static OPENED: AtomicBool = AtomicBool::new(false);

/// This process as a rank of MPI_COMM_WORLD.
///
/// A communication thread owns MPI: it alone initialises it, starts every operation without
/// blocking, polls, and finalises it when this is dropped. Callers hand it work through a fixed
/// table of [`OUTSTANDING_MAX`](crate::OUTSTANDING_MAX) operations and sleep until it is done.
///
/// Ranks of one node move the data channel's collective operations through memory that they share
/// (see [`MpiOptions::node_shared`]); the communication thread does that work too. MPI then carries
/// what is between nodes: ranks of the same index on their nodes each talk about their own part, or
/// where nodes differ in size, the first rank of each node talks for all. MPI moves elements and
/// never adds them up: sums have an order of this crate's.
///
/// After a failure (a passed deadline, an MPI error, [`Collective::abandon`]) the thread leaves MPI
/// for good, and dropping this calls no MPI_Finalize, which would wait for the lost peer. All waits
/// together give the thread one second to come back from the MPI call it is in. What was under way
/// may still write its memory after that: see [`Collective::memory_at_risk`].
#[derive(Debug)]
pub struct Mpi {
    rank: usize,
    world: usize,
    /// What the library and the node carry, in words.
    library: String,
    /// The first that there is to tell.
    warning: OnceLock<String>,
    options: MpiOptions,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Mpi {
    /// Initialises MPI. To be called once per process, and only in one that a launcher started
    /// (or as the only rank: MPI then makes a world of one).
    ///
    /// # Errors
    /// [`Error::Start`] when MPI says no or was initialised before; [`Error::OpenDeadline`] when
    /// it is not ready in time, because MPI waits for all ranks.
    pub fn open(options: MpiOptions) -> Result<Self, Error> {
        let start = |text: String| Error::Start { backend: NAME, text };
        if !(1..=Self::max_count()).contains(&options.chunk_elements_max) {
            let (limit, found) = (Self::max_count(), options.chunk_elements_max);
            return Err(start(format!(
                "expected chunk_elements_max in 1..={limit}, found {found}"
            )));
        }
        if OPENED.swap(true, Ordering::SeqCst) {
            return Err(start("it was opened before in this process".to_owned()));
        }
        let shared = Arc::new(Shared::new());
        let (sender, ready) = sync_channel(1);
        let (theirs, asked) = (shared.clone(), options.clone());
        let thread = std::thread::Builder::new()
            .name("communication".to_owned())
            .spawn(move || worker::run(&theirs, &asked, &sender))
            .map_err(|error| start(format!("no thread for communication: {error}")))?;
        let waited = options.open_timeout;
        let facts = ready.recv_timeout(waited).map_err(|error| match error {
            RecvTimeoutError::Timeout => Error::OpenDeadline { backend: NAME, waited },
            RecvTimeoutError::Disconnected => start("the communication thread ended".to_owned()),
        });
        let Facts { rank, size, warning } = facts??;
        let library = describe(shared.node().is_some());
        let thread = Some(thread);
        let warning = warning.map_or_else(OnceLock::new, OnceLock::from);
        Ok(Self { rank, world: size, library, warning, options, shared, thread })
    }

    /// The MPI library's description of itself. Does not initialise MPI.
    pub fn library_version() -> String {
        calls::library_version()
    }

    /// Most elements that one MPI call can take.
    pub fn max_count() -> usize {
        c_int::MAX as usize
    }

    /// Ends MPI in order: waits for the other ranks, then finalises. Dropping does the same with
    /// [`MpiOptions::close_timeout`] and without telling how it went.
    ///
    /// # Errors
    /// [`Error::Dead`] when the backend failed before, or a rank did not come in time.
    pub fn close(mut self, deadline: Instant) -> Result<(), Error> {
        self.end(deadline)
    }

    fn warn(&self, text: String) {
        let _ = self.warning.set(text); // the first stays
    }

    fn end(&mut self, deadline: Instant) -> Result<(), Error> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let mut state = self.shared.lock();
        if state.slots.outstanding() > 0 {
            state.die(|| "it was closed with operations under way".to_owned());
        }
        state.closing = Some(deadline);
        let until = state.died.unwrap_or(deadline);
        self.shared.wake_worker();
        let state = self.shared.await_left(state, until + shared::GRACE);
        let (left, finalised) = (state.left, state.finalised);
        let reason = state.dead.clone();
        drop(state);
        if left {
            // It is past its last statement; a panic in it has been reported as death already.
            let _ = thread.join();
        }
        match (finalised, reason) {
            (true, _) => Ok(()),
            (false, Some(reason)) => Err(self.shared.dead(self.rank, reason)),
            (false, None) => Err(self.shared.dead(self.rank, "MPI_Finalize does not end".into())),
        }
    }
}

/// The library's name for itself, and what carries the data of the ranks of one node.
fn describe(shares: bool) -> String {
    let version = Mpi::library_version();
    let name = version.lines().next().unwrap_or_default().trim();
    if shares { format!("{name}; node: shared memory") } else { name.to_owned() }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abandon("a panic");
        }
        let _ = self.end(Instant::now() + self.options.close_timeout);
    }
}

// SAFETY: the communication thread touches memory only between the start of an operation and the
// setting of its outcome, and `wait` returns after that; or with an error after the thread left MPI
// for good or was given up, and then `memory_at_risk` says whether anything may still write (see
// `Shared::leave_mpi`).
unsafe impl Collective for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn backend(&self) -> &'static str {
        NAME
    }

    fn library(&self) -> Option<String> {
        Some(self.library.clone())
    }

    fn warning(&self) -> Option<String> {
        self.warning.get().cloned()
    }

    fn shares_memory(&self) -> bool {
        self.shared.node().is_some()
    }

    fn share(&self, bytes: usize, deadline: Instant) -> Result<Option<crate::Shared>, Error> {
        let Some(node) = self.shared.node() else { return Ok(None) };
        share::share(self, node, bytes, deadline)
    }

    fn timeout(&self) -> Duration {
        self.options.timeout
    }

    unsafe fn submit(
        &self,
        channel: Channel,
        operation: Operation,
        memory: Memory,
    ) -> Result<Ticket, Error> {
        operation.check(memory.dtype(), memory.len(), self.rank, self.world)?;
        self.shared.submit(self.rank, Job::new(channel, operation, memory))
    }

    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<Timing, Error> {
        self.shared.wait(self.rank, &ticket, deadline)
    }

    fn memory_at_risk(&self) -> bool {
        self.shared.memory_at_risk()
    }

    fn abandon(&self, reason: &str) {
        let mut state = self.shared.lock();
        state.die(|| reason.to_owned());
        drop(self.shared.leave_mpi(state));
    }
}
