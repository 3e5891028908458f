//! Collective operations that are measured.

use std::time::Instant;

use clap::ValueEnum;
use collectives::{Channel, Operation, scope};
use device::ViewMut;
use serde::Serialize;

use crate::ranks::Ranks;

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

/// Tag of the messages of an all-to-all.
const TAG: u16 = 11;

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
    fn of_backend(self) -> Option<Operation> {
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

    /// Runs the operation in place, and waits for it. `scratch` has the length of the buffer: an
    /// all-to-all, which is made of messages, sends from its parts.
    pub(super) fn run(
        self,
        ranks: &Ranks<'_>,
        buffer: ViewMut<'_, f32>,
        scratch: &mut [f32],
        deadline: Instant,
    ) -> Result<(), collectives::Error> {
        let Some(operation) = self.of_backend() else {
            return all_to_all(ranks, buffer.host(), scratch, deadline);
        };
        ranks.collective.run(Channel::Data, operation, buffer, deadline).map(drop)
    }
}

/// Sends part p of this rank to rank p, and receives that rank's part for this rank.
fn all_to_all(
    ranks: &Ranks<'_>,
    buffer: &mut [f32],
    scratch: &mut [f32],
    deadline: Instant,
) -> Result<(), collectives::Error> {
    let own = ranks.rank();
    let part = buffer.len() / ranks.world();
    scratch.copy_from_slice(buffer);
    scope(ranks.collective, |scope| {
        let sent = scratch.chunks_exact_mut(part).enumerate();
        let received = buffer.chunks_exact_mut(part);
        let mut pending = Vec::with_capacity(2 * ranks.world());
        for ((peer, sent), received) in sent.zip(received).filter(|((peer, _), _)| *peer != own) {
            pending.push(scope.start(Operation::Send { to: peer, tag: TAG }, sent)?);
            pending.push(scope.start(Operation::Receive { from: peer, tag: TAG }, received)?);
        }
        pending.into_iter().try_for_each(|one| one.wait(deadline).map(drop))
    })
}
