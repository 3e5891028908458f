//! Tallies of a rank's communication, by what is moved.

use std::time::Instant;

use collectives::{Operation, Settled, Timing};
use record::{BucketRecord, DimensionTraffic};

use super::communication::{Communication, CommunicationTally};
use crate::mesh::{Dimensions, Group};

/// Data that moves between ranks in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// Gradients, which are reduced.
    Gradients,
    /// Weights, which are gathered after they were updated.
    Weights,
    /// Sharded weights, which are gathered into windows.
    Windows,
}

/// Communication of a rank.
#[derive(Debug)]
pub(crate) struct Tallies {
    pub(crate) gradients: CommunicationTally,
    pub(crate) weights: CommunicationTally,
    pub(crate) windows: CommunicationTally,
    has_windows: bool,
}

impl Tallies {
    /// Creates the tallies of ranks that reduce gradients by an operation, and gather weights into
    /// windows or all of them.
    pub(crate) fn new(
        dimensions: &Dimensions<'_>,
        reduction: Operation,
        has_windows: bool,
    ) -> Self {
        let Dimensions { owners, shard, data, .. } = dimensions;
        let updated = if has_windows { data } else { owners };
        let gathers = |group| CommunicationTally::new(Operation::AllGather, group);
        Self {
            gradients: CommunicationTally::new(reduction, owners.collective),
            weights: gathers(updated.collective),
            windows: gathers(shard.collective),
            has_windows,
        }
    }

    /// Adds an operation, the wait for which began then.
    pub(crate) fn add(&mut self, moved: Moved, timing: Timing, wait_start: Instant) {
        let tally = match moved {
            Moved::Gradients => &mut self.gradients,
            Moved::Weights => &mut self.weights,
            Moved::Windows => &mut self.windows,
        };
        tally.add(timing, wait_start);
    }

    /// Adds an operation of a group that the device has completed.
    pub(crate) fn add_settled(&mut self, group: Group, settled: Settled) {
        let moved = match (settled.operation, group) {
            (Operation::AllGather, Group::Shard) if self.has_windows => Moved::Windows,
            (Operation::AllGather, _) => Moved::Weights,
            _ => Moved::Gradients,
        };
        self.add(moved, settled.timing, settled.wait_start);
    }

    /// Returns the communication since the last call, and begins the next step.
    pub(crate) fn take(&mut self) -> Communication {
        let Self { gradients, weights, windows, .. } = self;
        gradients.take().and(weights.take()).and(windows.take())
    }

    /// Leaves out the gathers of weights since the last step, which are no part of one.
    pub(crate) fn discard_gathers(&mut self) {
        self.weights.discard();
        self.windows.discard();
    }

    /// Keeps every operation from now on, until the trace is taken.
    pub(crate) fn start_trace(&mut self) {
        self.all_mut().into_iter().for_each(CommunicationTally::start_trace);
    }

    /// Returns the buckets that were communicated after the first steps.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = BucketRecord> {
        self.all().into_iter().flat_map(CommunicationTally::buckets)
    }

    /// Returns the traffic over each dimension in a step after the first ones.
    pub(crate) fn traffic(&self) -> impl Iterator<Item = DimensionTraffic> {
        self.all().into_iter().flat_map(CommunicationTally::traffic)
    }

    fn all(&self) -> [&CommunicationTally; 3] {
        [&self.gradients, &self.weights, &self.windows]
    }

    fn all_mut(&mut self) -> [&mut CommunicationTally; 3] {
        [&mut self.gradients, &mut self.weights, &mut self.windows]
    }
}
