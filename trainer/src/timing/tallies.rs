//! Tallies of a rank's communication, by what is moved.

use std::mem;
use std::time::Instant;

use collectives::{Interval, Operation, Settled, Timing};
use record::{BucketRecord, DimensionTraffic};

use super::communication::{Communication, CommunicationTally, InFlight};
use crate::mesh::{DATA_NAME, Dimensions};

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
    /// Operations of all kinds, whose times overlap.
    in_flight: InFlight,
    /// False while communication is of no step.
    counts: bool,
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
            in_flight: InFlight::default(),
            counts: true,
        }
    }

    /// Adds an operation, the wait for which began then.
    pub(crate) fn add(&mut self, moved: Moved, timing: Timing, wait_start: Instant) {
        if !self.counts {
            return;
        }
        let Timing { started, ended, .. } = timing;
        self.in_flight.add(Interval { started, ended }, wait_start);
        let tally = match moved {
            Moved::Gradients => &mut self.gradients,
            Moved::Weights => &mut self.weights,
            Moved::Windows => &mut self.windows,
        };
        tally.add(timing, wait_start);
    }

    /// Adds an operation that the device has completed.
    pub(crate) fn add_settled(&mut self, settled: Settled) {
        let moved = match settled.operation {
            Operation::AllGather if self.has_windows && settled.dimension != DATA_NAME => {
                Moved::Windows
            }
            Operation::AllGather => Moved::Weights,
            _ => Moved::Gradients,
        };
        self.add(moved, settled.timing, settled.wait_start);
    }

    /// Sets whether communication counts from now on: that of an evaluation is of no step.
    pub(crate) fn count(&mut self, counts: bool) {
        self.counts = counts;
    }

    /// Returns the communication since the last call, and begins the next step.
    pub(crate) fn take(&mut self) -> Communication {
        self.all_mut().into_iter().for_each(CommunicationTally::begin_step);
        self.take_rest()
    }

    /// Returns the communication since the last call, which counts towards the step that follows
    /// for the traffic of a step.
    pub(crate) fn take_rest(&mut self) -> Communication {
        let in_flight = mem::take(&mut self.in_flight);
        let lead_ns = self.gradients.take_lead_ns();
        let bytes = self.all_mut().into_iter().map(CommunicationTally::take_bytes).sum();
        in_flight.of_step(bytes, lead_ns)
    }

    /// Leaves out the gathers of weights since the last step, which are no part of one.
    pub(crate) fn discard_gathers(&mut self) {
        self.weights.discard();
        self.windows.discard();
        self.in_flight = InFlight::default();
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use collectives::Single;

    use super::*;
    use crate::mesh::Mesh;

    /// Runs a step with operations that are waited for at a time.
    fn step(operations: &[(Moved, [u64; 2], u64)]) -> Communication {
        let single = Single::new();
        let dimensions = Mesh::flat(&single, &single).dimensions(Duration::ZERO);
        let mut tallies = Tallies::new(&dimensions, Operation::AllReduceSum, true);
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        for &(moved, [from, to], wait_start) in operations {
            let timing = Timing { started: at(from), ended: at(to), bytes: 8, outer: None };
            tallies.add(moved, timing, at(wait_start));
        }
        let found = tallies.take();
        assert_eq!(tallies.take().total_ns, 0, "taking resets the tallies");
        found
    }

    #[test]
    fn time_with_several_operations_in_flight_counts_once() {
        // Backward ends at 30. The second is inside the first, the third overlaps, and the fourth,
        // after a gap, is exposed.
        let found = step(&[
            (Moved::Gradients, [10, 20], 30),
            (Moved::Windows, [12, 18], 30),
            (Moved::Gradients, [15, 35], 30),
            (Moved::Weights, [40, 45], 30),
        ]);
        assert_eq!(found.total_ns, 30_000_000);
        assert_eq!(found.hidden_ns, 20_000_000);
        assert_eq!(found.first_bucket_lead_ns, 20_000_000);
        assert_eq!(found.bytes, 32);
    }

    #[test]
    fn each_operation_is_hidden_until_the_wait_for_it() {
        let found = step(&[
            (Moved::Weights, [0, 10], 4),   // forward waits 6
            (Moved::Weights, [2, 20], 15),  // forward computes from 10 to 15 and waits 5
            (Moved::Windows, [20, 30], 40), // arrived before it was needed
        ]);
        assert_eq!((found.total_ns, found.hidden_ns), (30_000_000, 19_000_000));
    }

    #[test]
    fn an_evaluation_is_in_no_step() {
        let single = Single::new();
        let dimensions = Mesh::flat(&single, &single).dimensions(Duration::ZERO);
        let mut tallies = Tallies::new(&dimensions, Operation::AllReduceSum, true);
        let now = Instant::now();
        let timing = Timing { started: now, ended: now, bytes: 8, outer: None };
        tallies.count(false);
        tallies.add(Moved::Windows, timing, now);
        tallies.count(true);
        tallies.add(Moved::Windows, timing, now);
        assert_eq!(tallies.take_rest().bytes, 8);
    }
}
