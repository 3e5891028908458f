//! The trait that every backend implements.
#![allow(unsafe_code)]

use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::Keeper;

use super::error::Error;
use super::group::{GridPlan, GroupPlan};
use super::message::Message;
use super::operation::{Channel, Operation, Settled, Timing};
use super::raw_buffer::RawBuffer;
use super::traffic::{Dimension, Dimensions};

/// Most operations that may be outstanding (submitted and not waited for) per backend and buffer.
///
/// The tables have this fixed size, so that submitting and waiting never allocate. One more is
/// [`Error::Full`].
pub const OUTSTANDING_MAX: usize = 1024;

/// Handle of a submitted operation, for [`Collective::wait`].
///
/// A ticket that is dropped leaves its operation outstanding until the backend is dropped.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the buffer stays lent until the ticket was waited for"]
pub struct Ticket {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Memory that a backend allocated; see [`Collective::allocate`].
#[derive(Debug)]
pub struct BackendMemory {
    /// First byte.
    pub start: NonNull<u8>,
    /// Keeps the memory valid.
    pub keeper: Keeper,
}

/// One rank's end of a group of ranks: of all ranks of the world, or of
/// [some of them](Collective::subgroup).
///
/// # Safety
/// Implementors promise that a buffer given to `submit` or `submit_group` is neither read nor
/// written any more
/// - once `wait` returned success for its ticket, or `join` returned a timing;
/// - once `join` returned success without one, in the order of the compute stream of the device
///   whose memory it is, which is the only stream that uses such memory;
/// - once `submit`, `submit_group`, `wait`, `join` or `settle` returned an error, unless
///   [`memory_at_risk`](Self::memory_at_risk) is true;
///
/// and that `allocate` returns as many zero bytes as asked for, aligned to a page, which are valid
/// as long as the keeper lives and which no rank touches except as part of an operation that they
/// were lent to.
///
/// The safe interface ([`Incoming`](crate::Incoming), [`AllToAll`](crate::AllToAll), the methods of
/// `dyn Collective`) rests on this. So its safety has one gap, which its users must close: after an
/// error with memory at risk, the buffers of all operations that were in flight must not be freed
/// or reused until the process ends. A backend over a library that cannot cancel operations can
/// promise no more, because waiting for the library could last for ever.
pub unsafe trait Collective: Send + Sync + Debug {
    /// This rank in the group, 0 to `world() - 1`.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn world(&self) -> usize;

    /// A group of some ranks of the world. Only its members create it, each without waiting for the
    /// others. Operations take the group's own ranks, errors name those of the world. Each group
    /// has its own order of operations; all share the table of outstanding operations, and a
    /// failure in one is the end of all. On [`Nccl`](crate::Nccl) members wait for each other, and
    /// operations of devices have one order in all groups.
    ///
    /// A group of all ranks in their order is the world itself, with the world's order of
    /// operations.
    ///
    /// # Errors
    /// [`Error::Start`] where the plan does not fit the world, and where the backend has no groups;
    /// those of [`Nccl::open`](crate::Nccl::open) on that.
    fn subgroup(&self, plan: &GroupPlan) -> Result<Box<dyn Collective>, Error> {
        let text = format!("it has no groups, such as {plan}");
        Err(Error::Start { backend: self.backend(), text })
    }

    /// A grid of ranks of the world: a group whose all-reduces, reduce-scatters and all-gathers go
    /// over one dimension after the other. A rank's rank in it is that of
    /// [`GridPlan::group`].
    ///
    /// # Errors
    /// Those of [`subgroup`](Self::subgroup).
    fn grid(&self, plan: &GridPlan) -> Result<Box<dyn Collective>, Error> {
        let group = plan.checked_group();
        let start = |text| Error::Start { backend: self.backend(), text };
        self.subgroup(&group.map_err(start)?)
    }

    /// The group that this is, if it is not the world.
    fn group(&self) -> Option<Arc<GroupPlan>> {
        None
    }

    /// The dimensions that operations go over.
    fn dimensions(&self) -> Dimensions {
        let name = self.group().map_or("world", |group| group.dimension);
        Dimensions { inner: Dimension { name, ranks: self.world() }, outer: None }
    }

    /// `single`, `threads`, `mpi` or `nccl`.
    fn backend(&self) -> &'static str;

    /// The library below the backend, as it names itself, and after a semicolon what moves data
    /// within a node where that is not the library; `None` where there is no library.
    fn library(&self) -> Option<String> {
        None
    }

    /// Reason, for the record, why a working backend is slower than it could be.
    fn warning(&self) -> Option<String> {
        None
    }

    /// Returns whether ranks of one node reduce through shared memory, so that the library only
    /// moves data between nodes.
    fn shares_memory(&self) -> bool {
        false
    }

    /// Allocates memory that this backend reaches better than any other, for the `buffer` of `dyn
    /// Collective`; `None` where the backend has no memory of its own. All ranks call this at the
    /// same time, with the same size.
    ///
    /// # Errors
    /// Those of [`Collective::submit`] and [`Collective::wait`].
    fn allocate(&self, bytes: usize, deadline: Instant) -> Result<Option<BackendMemory>, Error> {
        let _ = (bytes, deadline);
        Ok(None)
    }

    /// Runs operations once on a device, on so much memory, where the library below connects ranks
    /// when they first need it: so that none is connected later, while an operation is in flight.
    /// All ranks of the group call this at the same time, with the operations that they will use in
    /// it.
    ///
    /// # Errors
    /// [`Error::Start`] when the library cannot; [`Error::Deadline`] and [`Error::PeerLost`] as any
    /// operation.
    fn connect(&self, operations: &[Operation], bytes: usize) -> Result<(), Error> {
        let _ = (operations, bytes);
        Ok(())
    }

    /// Prepares memory of a device for operations on it, where the library below gains by that.
    /// `keeper` keeps the memory, and the backend may hold it for as long as it lives itself. All
    /// ranks call this at the same time, with the same size.
    fn register(&self, buffer: RawBuffer, keeper: Keeper) {
        let _ = (buffer, keeper);
    }

    /// Timeout at the end of a [buffer](crate::Incoming) for operations that the caller did not
    /// wait for.
    fn timeout(&self) -> Duration;

    /// Starts an operation without blocking. Does not allocate.
    ///
    /// # Safety
    /// The buffer is valid, and nobody else reads or writes it, until `wait` returned for this
    /// ticket. Every ticket is waited for before the buffer ends.
    ///
    /// # Errors
    /// [`Error::Mismatch`], [`Error::Unsupported`] and [`Error::Full`] leave the backend as it
    /// was; [`Error::Dead`] after an earlier failure.
    unsafe fn submit(
        &self,
        channel: Channel,
        operation: Operation,
        buffer: RawBuffer,
    ) -> Result<Ticket, Error>;

    /// Starts several messages together, with one ticket, without blocking. None of them waits for
    /// another, in whatever order ranks list those to and from different peers: so ranks that send
    /// to each other do not block each other. Does not allocate.
    ///
    /// # Safety
    /// As of [`submit`](Self::submit), for all buffers; no two of them overlap.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit); no message is started then. [`Error::Unsupported`] where
    /// the backend has no messages.
    unsafe fn submit_group(&self, channel: Channel, messages: &[Message]) -> Result<Ticket, Error> {
        let _ = (channel, messages);
        let text = format!("the backend {}", self.backend());
        Err(Error::Unsupported { operation: Operation::Messages, text })
    }

    /// Blocks until the operation is complete, or until the deadline. Does not allocate on success.
    ///
    /// # Errors
    /// [`Error::Deadline`] (the backend is dead then), [`Error::Dead`], [`Error::Mpi`],
    /// [`Error::PeerLost`], and [`Error::Mismatch`] where ranks disagree and the backend sees it.
    ///
    /// # Panics
    /// Panics if the ticket is another backend's.
    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<Timing, Error>;

    /// Lets the computation that a device is given after this wait for the operation, and does not
    /// block the host: [`settle`](Self::settle) reports its outcome later. Where the buffer is in
    /// the host's memory, it waits for the operation and returns its timing. Does not allocate.
    ///
    /// Before the host waits for a device that may wait for such an operation, it calls `settle`:
    /// only that has a deadline.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
    ///
    /// # Panics
    /// Panics if the ticket is another backend's.
    fn join(&self, ticket: Ticket, deadline: Instant) -> Result<Option<Timing>, Error> {
        self.wait(ticket, deadline).map(Some)
    }

    /// Blocks until the device has completed all operations that were joined, and passes each to
    /// `report` in the order in which they were joined. An operation may take `timeout` from the
    /// moment at which the device's computation needs it: how long the computation before takes
    /// does not count. Does not allocate on success.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait); [`Error::Device`] when the device failed.
    fn settle(&self, timeout: Duration, report: &mut dyn FnMut(Settled)) -> Result<(), Error> {
        let _ = (timeout, report);
        Ok(())
    }

    /// Returns whether buffers of failed operations may still be written, although `wait` returned:
    /// the operations could not be cancelled in the library, in its network adapter or on peers.
    ///
    /// If true, the process must end soon, and must until then neither free nor reuse the buffers
    /// that were lent. Call this after an error; or do not and be on the safe side, as the trainer
    /// does, which keeps every lent buffer in a `ManuallyDrop` that only success undoes, and ends
    /// the process after any error. Once true it stays true, except that a communication thread
    /// which was stuck may return. Cheap; always false for backends that run within the process.
    fn memory_at_risk(&self) -> bool {
        false
    }

    /// Leaves the group at once, because this rank failed for a reason of its own: outstanding and
    /// later operations are [`Error::Dead`], except for those that were complete already, whose
    /// `wait` still returns their outcome; and dropping the backend waits for nobody.
    fn abandon(&self, reason: &str);
}
