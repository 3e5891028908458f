//! The backend: one process of MPI as a rank.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::library::calls;
use super::options::MpiOptions;
use super::worker::handle::{GRACE, NAME, WorkerHandle};
use super::worker::thread::{self, Opened};
use crate::core::group::{Membership, WORLD};
use crate::core::outstanding::Job;
use crate::shm::share::{all_gather_over, share};
use crate::{
    BackendMemory, Channel, Collective, Dimensions, Error, GridPlan, GroupPlan, Message, Operation,
    RawBuffer, Ticket, Timing,
};

const HINT: &str = "did every rank start, and under the mpirun of the same MPI library?";

/// MPI can be initialised once per process.
static OPENED: AtomicBool = AtomicBool::new(false);

/// This process as a rank of MPI_COMM_WORLD.
///
/// A communication thread owns MPI: it alone initialises it, starts every operation without
/// blocking, polls, and finalises it when this is dropped. Callers submit operations through a
/// fixed table of [`OUTSTANDING_MAX`](crate::OUTSTANDING_MAX) entries and sleep until they are
/// complete.
///
/// Buffers made by `dyn Collective`'s `buffer` lie in memory that all ranks of the node map, where
/// ranks share a node (see [`MpiOptions::shared_memory`]). The communication threads sum and copy
/// in place there, and MPI only moves data between nodes: ranks with the same index on their nodes
/// each exchange their own part. Where nodes differ in size, the first rank of each node exchanges
/// for the whole node. MPI carries all operations on other memory. MPI moves elements and never
/// sums them: this crate computes all sums, in a fixed order.
///
/// After a failure (a passed deadline, an MPI error, [`Collective::abandon`]) the thread leaves MPI
/// for good, and dropping this calls no MPI_Finalize, which would wait for the lost peer. All waits
/// together give the thread one second to return from the MPI call it is in. Operations that were
/// in flight may write their buffers even after that: see [`Collective::memory_at_risk`].
#[derive(Debug)]
pub struct Mpi {
    membership: Membership,
    /// Number of all ranks.
    world_size: usize,
    library: Arc<str>,
    /// The first that there was.
    warning: Arc<OnceLock<String>>,
    options: MpiOptions,
    handle: Arc<WorkerHandle>,
    /// `None` in groups, which do not close MPI.
    thread: Option<JoinHandle<()>>,
}

impl Mpi {
    /// Initialises MPI. To be called once per process, and only in one that a launcher started
    /// (or as the only rank: MPI then makes a world of one).
    ///
    /// # Errors
    /// [`Error::Start`] when MPI fails or was initialised before; [`Error::OpenDeadline`] when it
    /// is not ready in time, because MPI waits for all ranks.
    pub fn open(options: MpiOptions) -> Result<Self, Error> {
        check_message_limit(options.message_elements_max).map_err(start)?;
        if OPENED.swap(true, Ordering::SeqCst) {
            return Err(start("it was opened before in this process".to_owned()));
        }
        let handle = Arc::new(WorkerHandle::new());
        let (sender, opened) = sync_channel(1);
        let thread = {
            let handle = handle.clone();
            let options = options.clone();
            let run = move || thread::run(&handle, &options, &sender);
            device::threads::spawn("communication", run)
                .map_err(|error| start(error.to_string()))?
        };
        let waited = options.open_timeout;
        let opened = opened.recv_timeout(waited).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                Error::OpenDeadline { backend: NAME, waited, hint: HINT.to_owned() }
            }
            RecvTimeoutError::Disconnected => start("the communication thread ended".to_owned()),
        });
        let Opened { rank, size, warning } = opened??;
        Ok(Self {
            membership: Membership::of_world(rank, size),
            world_size: size,
            library: describe(handle.node().is_some()).into(),
            warning: Arc::new(warning.map_or_else(OnceLock::new, OnceLock::from)),
            options,
            handle,
            thread: Some(thread),
        })
    }

    /// This process as a rank of a group. The group's messages have tags of their own, so that its
    /// creation needs no communication: MPI_Comm_split blocks until all ranks call it, and has no
    /// deadline.
    fn in_group(&self, plan: &GroupPlan, grid: Option<Arc<GridPlan>>) -> Result<Self, String> {
        let Self { membership: own, library, warning, options, handle, .. } = self;
        let rank = own.world_rank();
        let world = self.world_size;
        let member = plan.member(rank, world)?;
        let membership = match plan.is_world(world) && grid.is_none() {
            true => Membership::of_world(rank, world),
            false => handle.group(plan, member, grid)?,
        };
        Ok(Self {
            membership,
            world_size: world,
            library: library.clone(),
            warning: warning.clone(),
            options: options.clone(),
            handle: handle.clone(),
            thread: None,
        })
    }

    /// The MPI library's description of itself. Does not initialise MPI.
    pub fn library_version() -> String {
        calls::library_version()
    }

    /// Closes the backend in order: waits for the other ranks, then finalises MPI. Dropping does
    /// the same with [`MpiOptions::close_timeout`] and ignores errors.
    ///
    /// # Errors
    /// [`Error::Dead`] when the backend failed before, or a rank did not close it in time.
    pub fn close(mut self, deadline: Instant) -> Result<(), Error> {
        self.end(deadline)
    }

    fn end(&mut self, deadline: Instant) -> Result<(), Error> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let mut state = self.handle.lock();
        if state.outstanding.len() > 0 {
            state.die(|| "it was closed with operations in flight".to_owned());
        }
        state.closing = Some(deadline);
        let until = state.dead_since.unwrap_or(deadline);
        self.handle.wake_worker();
        let state = self.handle.await_left(state, until + GRACE);
        let has_left = state.has_left;
        let is_finalised = state.is_finalised;
        let reason = state.dead.clone();
        drop(state);
        if has_left {
            // It is past its last statement; a panic in it has been reported as death already.
            let _ = thread.join();
        }
        if is_finalised {
            return Ok(());
        }
        let reason = reason.unwrap_or_else(|| "MPI_Finalize does not end".into());
        Err(self.handle.dead(self.membership.world_rank(), reason))
    }
}

fn start(text: String) -> Error {
    Error::Start { backend: NAME, text }
}

/// MPI counts the elements of a message by a C int.
fn check_message_limit(elements_max: usize) -> Result<(), String> {
    let limit = c_int::MAX as usize;
    if (1..=limit).contains(&elements_max) {
        return Ok(());
    }
    Err(format!("expected message_elements_max in 1..={limit}, found {elements_max}"))
}

/// The library's name for itself, and what moves the data of the ranks of one node.
fn describe(shares_memory: bool) -> String {
    let version = Mpi::library_version();
    let name = version.lines().next().unwrap_or_default().trim();
    if shares_memory { format!("{name}; node: shared memory") } else { name.to_owned() }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abandon("a panic");
        }
        let _ = self.end(Instant::now() + self.options.close_timeout);
    }
}

// SAFETY: the communication thread touches a buffer only between the start of an operation and the
// setting of its outcome, and `wait` returns after that; or with an error after the thread left MPI
// for good or was given up, and then `memory_at_risk` reports whether anything may still write (see
// `WorkerHandle::leave_mpi`). Allocated memory is a fresh mapping, which its keeper keeps, and
// which other ranks touch only in operations on it.
unsafe impl Collective for Mpi {
    fn rank(&self) -> usize {
        self.membership.member
    }

    fn world(&self) -> usize {
        self.membership.size()
    }

    fn dimensions(&self) -> Dimensions {
        self.membership.dimensions()
    }

    fn subgroup(&self, plan: &GroupPlan) -> Result<Box<dyn Collective>, Error> {
        Ok(Box::new(self.in_group(plan, None).map_err(start)?))
    }

    fn grid(&self, plan: &GridPlan) -> Result<Box<dyn Collective>, Error> {
        let group = plan.checked_group().map_err(start)?;
        Ok(Box::new(self.in_group(&group, plan.staged()).map_err(start)?))
    }

    fn group(&self) -> Option<Arc<GroupPlan>> {
        self.membership.named()
    }

    fn backend(&self) -> &'static str {
        NAME
    }

    fn library(&self) -> Option<String> {
        Some(self.library.to_string())
    }

    fn warning(&self) -> Option<String> {
        self.warning.get().cloned()
    }

    fn shares_memory(&self) -> bool {
        self.membership.group == WORLD && self.handle.node().is_some()
    }

    fn allocate(&self, bytes: usize, deadline: Instant) -> Result<Option<BackendMemory>, Error> {
        let Some(node) = self.handle.node().filter(|_| bytes > 0 && self.shares_memory()) else {
            return Ok(None);
        };
        let all_gather = all_gather_over(self, deadline);
        match share(bytes, self.rank(), node.ranks(), all_gather)? {
            Ok(buffer) => {
                let buffer = Arc::new(buffer);
                node.add(buffer.clone());
                let start = NonNull::new(buffer.start(buffer.local()));
                Ok(start.map(|start| BackendMemory { start, keeper: buffer }))
            }
            Err(unavailable) => {
                let text = format!("a buffer is not shared, MPI moves its data: {unavailable}");
                let _ = self.warning.set(text); // the first stays
                Ok(None)
            }
        }
    }

    fn timeout(&self) -> Duration {
        self.options.timeout
    }

    unsafe fn submit(
        &self,
        channel: Channel,
        operation: Operation,
        buffer: RawBuffer,
    ) -> Result<Ticket, Error> {
        operation.require_host(buffer)?;
        operation.validate(buffer, &self.membership)?;
        let group = self.membership.group;
        let job = Job { group, ..Job::new(channel, operation, buffer) };
        self.handle.submit(&self.membership, job)
    }

    unsafe fn submit_group(&self, channel: Channel, messages: &[Message]) -> Result<Ticket, Error> {
        for message in messages {
            message.operation.require_host(message.buffer)?;
            message.validate(&self.membership)?;
        }
        let group = self.membership.group;
        let job = Job { group, ..Job::of_messages(channel, messages) };
        self.handle.submit_group(&self.membership, job, messages)
    }

    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<Timing, Error> {
        self.handle.wait(&self.membership, &ticket, deadline)
    }

    fn memory_at_risk(&self) -> bool {
        self.handle.memory_at_risk()
    }

    fn abandon(&self, reason: &str) {
        self.handle.abandon(reason);
    }
}
