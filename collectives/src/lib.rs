//! Communication between ranks: one trait, several backends, one contract suite.
//!
//! Every operation works in place on one contiguous buffer, is started without blocking and waited
//! for with a deadline. [`Incoming`] owns a buffer of which some ranges may be in flight while
//! others are used, from one call to another: so operations overlap computation without unsafe
//! code. The methods of `dyn Collective` (`all_reduce_sum`, `barrier`, ...) block, and serve
//! control messages. [`AllToAll`] exchanges parts of any length between every two ranks.
//!
//! `buffer`, another method of `dyn Collective`, creates buffers in the memory on which the backend
//! is fastest: on MPI, memory that the ranks of a node share.
//!
//! A group of some ranks, [`Collective::subgroup`], is a [`Collective`] like the world.
//!
//! Backends: [`Single`] (one rank), [`Threads`] (several ranks in one process, for tests), with
//! feature `mpi` `Mpi`, and over one of them [`Nccl`] for memory of CUDA devices. [`contract`] has
//! functions that check the promises of all backends. `src/backends/mod.rs` describes how to add
//! one.
//!
//! [`transports`] reads from NCCL's log the transport of each pair of ranks, and [`LogSettings`]
//! controls the content of that log.

mod backends;
pub mod contract;
mod core;
#[cfg(feature = "mpi")]
mod shm;
mod stages;
pub mod transports;

pub use backends::footprint::Footprint;
#[cfg(feature = "mpi")]
pub use backends::mpi::{Mpi, MpiOptions};
pub use backends::nccl::{LogSettings, Nccl, Variable};
pub use backends::single::Single;
pub use backends::threads::Threads;
pub use core::all_to_all::{AllToAll, Parts};
pub use core::bucket::{Bucket, BucketPlan};
pub use core::collective::{BackendMemory, Collective, OUTSTANDING_MAX, Ticket};
pub use core::dtype::{Dtype, Element};
pub use core::error::{Error, Position};
pub use core::group::{GridPlan, GroupPlan};
pub use core::incoming::Incoming;
pub use core::message::Message;
pub use core::operation::{Channel, Operation, Settled, Timing};
pub use core::raw_buffer::RawBuffer;
pub use core::traffic::{Dimension, Dimensions, Interval, StageTiming};
