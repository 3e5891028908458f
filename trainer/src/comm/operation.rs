//! Collective operations that are measured.

use clap::ValueEnum;
use collectives::Operation;
use serde::Serialize;

/// An operation between all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum CommOperation {
    /// Every rank has the sum.
    AllReduce,
    /// Every rank has a part of the sum.
    ReduceScatter,
    /// Every rank has the parts of all.
    AllGather,
    /// Every rank sends a part to each.
    AllToAll,
}

impl CommOperation {
    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::AllToAll => "all_to_all",
        }
    }

    /// Returns the operation of a backend; `None` if it is made of messages.
    pub(super) fn of_backend(self) -> Option<Operation> {
        match self {
            Self::AllReduce => Some(Operation::AllReduceSum),
            Self::ReduceScatter => Some(Operation::ReduceScatterSum),
            Self::AllGather => Some(Operation::AllGather),
            Self::AllToAll => None,
        }
    }

    /// Returns the bytes that each rank sends over its link, per byte of the buffer.
    pub fn bus_factor(self, world: usize) -> f64 {
        // An all-to-all sends as much over a link as an all-gather.
        self.of_backend().unwrap_or(Operation::AllGather).bus_factor(world)
    }
}
