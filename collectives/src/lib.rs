//! How ranks talk: one trait, several backends, one contract suite.
//!
//! Every operation works in place on one contiguous buffer, is started without blocking and waited
//! for with a deadline. Two ways to start operations that overlap computation are safe: [`scope`]
//! holds the borrow of every buffer until its operation is over; [`Incoming`] owns a buffer, of
//! which ranges may be under way from one call to another. The methods of `dyn Collective`
//! (`all_reduce_sum`, `barrier`, ...) are the blocking ones, for control messages.
//!
//! Backends: [`Single`] (one rank), [`Threads`] (several ranks in one process, for tests) and,
//! with feature `mpi`, `Mpi`. [`contract`] holds what they all promise, as functions that check it.

mod blocking;
mod bucket;
mod buffer;
mod collective;
pub mod contract;
mod error;
mod footprint;
mod incoming;
mod memory;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "mpi")]
mod node;
mod operation;
mod scope;
mod single;
mod slots;
mod threads;

pub use bucket::{Bucket, BucketPlan};
pub use buffer::{Buffer, Shared};
pub use collective::{Collective, OUTSTANDING_MAX, Ticket};
pub use error::Error;
pub use footprint::Footprint;
pub use incoming::Incoming;
pub use memory::{Element, Memory};
#[cfg(feature = "mpi")]
pub use mpi::{Mpi, MpiOptions};
pub use operation::{Channel, Dtype, Operation, Timing};
pub use scope::{Pending, Scope, scope};
pub use single::Single;
pub use threads::Threads;
