//! Reading one checkpoint: reads that fill boxes, shards chunk by chunk, and verification.
//!
//! The checkpoint and its sources are chosen in `tiers`.

mod open_checkpoint;
mod ownership;
mod plan;
mod retry;
mod shard_reader;
mod verify;

pub(crate) use open_checkpoint::OpenCheckpoint;
pub(crate) use ownership::Conflict;
pub(crate) use plan::{CopyRange, ReadPlan, ShardId};
pub(crate) use retry::retry_while_absent;
pub(crate) use shard_reader::ShardReader;
pub use verify::VerifyReport;
