//! The trait that every backend implements.
#![allow(unsafe_code)]

use std::fmt::Debug;
use std::time::{Duration, Instant};

use crate::{Channel, Error, Memory, Operation, Shared, Timing};

/// How many operations may be outstanding (submitted and not waited for) per backend and scope.
///
/// The tables have this fixed size, so that submitting and waiting never allocate. One more is
/// [`Error::Full`].
pub const OUTSTANDING_MAX: usize = 1024;

/// Proof of a submitted operation, to be given back to [`Collective::wait`].
///
/// A ticket that is dropped leaves its operation outstanding until the backend is dropped.
#[derive(Debug)]
#[must_use = "the memory stays lent until the ticket was waited for"]
pub struct Ticket {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// One rank's end of a group of ranks.
///
/// # Safety
/// Implementors promise that memory given to `submit` is neither read nor written any more
/// - once `wait` returned success for its ticket, or `submit` itself returned an error;
/// - once `wait` returned an error, unless [`memory_at_risk`](Self::memory_at_risk) is true.
///
/// The safe interface ([`scope`](crate::scope), the methods of `dyn Collective`) rests on this. So
/// its promise has one gap, which its users must close: after an error with memory at risk, the
/// buffers of all operations that were under way must stay as they are until the process ends. A
/// backend over a library that cannot take operations back can promise no more, because waiting
/// for the library could last for ever.
pub unsafe trait Collective: Send + Sync + Debug {
    /// This rank, 0 to `world() - 1`.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn world(&self) -> usize;

    /// `single`, `threads` or `mpi`.
    fn backend(&self) -> &'static str;

    /// The library behind the backend, as it names itself, and after a semicolon what moves data
    /// within a node where that is not the library; `None` where there is no library.
    fn library(&self) -> Option<String> {
        None
    }

    /// What is not as it should be with the backend, although it works: for the record.
    fn warning(&self) -> Option<String> {
        None
    }

    /// Whether ranks of one node move data through memory that they share, so that the library
    /// moves only what is between nodes.
    fn shares_memory(&self) -> bool {
        false
    }

    /// Memory of zeros that this backend reaches better than any other, for the `buffer` of `dyn
    /// Collective`; `None` where it does not matter. All ranks call this at the same time, with
    /// the same size.
    ///
    /// # Errors
    /// Those of [`Collective::submit`] and [`Collective::wait`].
    fn share(&self, bytes: usize, deadline: Instant) -> Result<Option<Shared>, Error> {
        let _ = (bytes, deadline);
        Ok(None)
    }

    /// The patience of a [`scope`](crate::scope)'s end with operations that nobody waited for.
    fn timeout(&self) -> Duration;

    /// Starts an operation without blocking. Does not allocate.
    ///
    /// # Safety
    /// The memory is valid, and nobody else reads or writes it, until `wait` returned for this
    /// ticket. Every ticket is waited for before the memory ends.
    ///
    /// # Errors
    /// [`Error::Mismatch`], [`Error::Unsupported`] and [`Error::Full`] leave the backend as it
    /// was; [`Error::Dead`] after an earlier failure.
    unsafe fn submit(
        &self,
        channel: Channel,
        operation: Operation,
        memory: Memory,
    ) -> Result<Ticket, Error>;

    /// Blocks until the operation is over, or until the deadline. Does not allocate on success.
    ///
    /// # Errors
    /// [`Error::Deadline`] (the backend is dead then), [`Error::Dead`], [`Error::Mpi`],
    /// [`Error::PeerLost`], and [`Error::Mismatch`] where ranks disagree and the backend sees it.
    ///
    /// # Panics
    /// When the ticket is another backend's.
    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<Timing, Error>;

    /// Whether memory of operations that failed may still be written, although `wait` returned:
    /// they could not be taken back from the library below, from its network adapter or from peers.
    ///
    /// When it is true the process must end soon, and must until then neither free nor use again
    /// the buffers that were lent. Ask after an error to find out; or do not ask and be on the safe
    /// side, as the trainer does, which keeps every lent buffer in a `ManuallyDrop` that is undone
    /// by success alone, and ends the process after any error. Once true it stays true, except that
    /// a communication thread which was stuck may come back. Cheap; false for backends that run
    /// within the process.
    fn memory_at_risk(&self) -> bool {
        false
    }

    /// Leaves the group at once, because this rank failed for a reason of its own: outstanding
    /// and later operations are [`Error::Dead`], except for those that were over already, whose
    /// `wait` still returns how they ended; and dropping the backend waits for nobody.
    fn abandon(&self, reason: &str);
}
