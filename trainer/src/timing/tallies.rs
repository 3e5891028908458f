//! Tallies of a rank's communication, by what is moved.

use collectives::{Interval, Operation, Settled, Timing};
use record::{BucketRecord, DimensionTraffic};

use super::communication::{Communication, CommunicationTally};
use super::intervals::Intervals;
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
    /// Times of operations of all kinds that are not counted yet.
    in_flight: Intervals,
    /// Times in which the rank waited for any of them.
    waits: Intervals,
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
            in_flight: Intervals::default(),
            waits: Intervals::default(),
            counts: true,
        }
    }

    /// Adds an operation, and the wait for it. Waits do not overlap.
    pub(crate) fn add(&mut self, moved: Moved, timing: Timing, wait: Interval) {
        if !self.counts {
            return;
        }
        let Timing { started, ended, .. } = timing;
        self.in_flight.add(Interval { started, ended });
        self.waits.add(wait);
        let tally = match moved {
            Moved::Gradients => &mut self.gradients,
            Moved::Weights => &mut self.weights,
            Moved::Windows => &mut self.windows,
        };
        tally.add(timing, wait);
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
        let Settled { timing, wait_start, .. } = settled;
        let wait = Interval { started: wait_start, ended: timing.ended.max(wait_start) };
        self.add(moved, timing, wait);
    }

    /// Sets whether communication counts from now on: that of an evaluation is of no step.
    pub(crate) fn count(&mut self, counts: bool) {
        self.counts = counts;
    }

    /// Returns the communication since the last call, and begins the next step.
    pub(crate) fn take(&mut self) -> Communication {
        let communication = self.take_rest();
        self.all_mut().into_iter().for_each(CommunicationTally::begin_step);
        communication
    }

    /// Returns the communication since the last call, which counts towards the step that follows
    /// for the traffic of a step.
    pub(crate) fn take_rest(&mut self) -> Communication {
        let Self { gradients, weights, windows, in_flight, waits, .. } = self;
        in_flight.unite();
        waits.unite();
        let mut bytes = 0;
        for tally in [&mut *gradients, weights, windows] {
            tally.count(waits);
            bytes += tally.take_bytes();
        }
        let communication = Communication {
            total_ns: in_flight.total_ns(),
            hidden_ns: in_flight.without_ns(waits),
            first_bucket_lead_ns: gradients.take_lead_ns(),
            bytes,
        };
        in_flight.clear();
        waits.clear();
        communication
    }

    /// Leaves out the gathers of weights since the last step, which are no part of one.
    pub(crate) fn discard_gathers(&mut self) {
        self.weights.discard();
        self.windows.discard();
        self.in_flight.clear();
        self.waits.clear();
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
    use std::time::{Duration, Instant};

    use collectives::Single;

    use super::*;
    use crate::mesh::Mesh;

    /// Milliseconds of a step.
    type Times = [u64; 2];

    fn tallies() -> Tallies {
        let single = Single::new();
        let dimensions = Mesh::flat(&single, &single).dimensions(Duration::ZERO);
        Tallies::new(&dimensions, Operation::AllReduceSum, true)
    }

    /// Adds operations with the waits for them.
    fn add(tallies: &mut Tallies, zero: Instant, operations: &[(Moved, Times, Times)]) {
        let at = |ms| zero + Duration::from_millis(ms);
        for &(moved, [from, to], [wait_from, wait_to]) in operations {
            let timing = Timing { started: at(from), ended: at(to), bytes: 8, outer: None };
            let wait = Interval { started: at(wait_from), ended: at(wait_to) };
            tallies.add(moved, timing, wait);
        }
    }

    fn step(operations: &[(Moved, Times, Times)]) -> Communication {
        let mut tallies = tallies();
        add(&mut tallies, Instant::now(), operations);
        let found = tallies.take();
        assert_eq!(tallies.take().total_ns, 0, "taking resets the tallies");
        found
    }

    #[test]
    fn time_with_several_operations_in_flight_counts_once() {
        // Backward ends at 30. The second is inside the first, the third overlaps, and the fourth,
        // after a gap, is exposed.
        let found = step(&[
            (Moved::Gradients, [10, 20], [30, 30]),
            (Moved::Windows, [12, 18], [30, 30]),
            (Moved::Gradients, [15, 35], [30, 35]),
            (Moved::Weights, [40, 45], [40, 45]),
        ]);
        assert_eq!(found.total_ns, 30_000_000);
        assert_eq!(found.hidden_ns, 20_000_000);
        assert_eq!(found.first_bucket_lead_ns, 20_000_000);
        assert_eq!(found.bytes, 32);
    }

    #[test]
    fn operations_are_hidden_while_the_rank_waits_for_none() {
        let found = step(&[
            (Moved::Weights, [0, 10], [4, 10]),   // forward waits 6
            (Moved::Weights, [2, 20], [15, 20]),  // forward computes from 10 to 15 and waits 5
            (Moved::Windows, [20, 30], [40, 40]), // arrived before it was needed
        ]);
        assert_eq!((found.total_ns, found.hidden_ns), (30_000_000, 19_000_000));
    }

    /// The gather is started after the reduction and waited for before it.
    #[test]
    fn a_reduction_is_not_hidden_while_the_rank_waits_for_a_gather() {
        let mut tallies = tallies();
        let zero = Instant::now();
        let operations = [
            (Moved::Windows, [4, 12], [6, 13]),
            (Moved::Gradients, [0, 20], [16, 21]),
            (Moved::Windows, [13, 26], [21, 26]),
        ];
        for _ in 0..3 {
            add(&mut tallies, zero, &operations);
            let found = tallies.take();
            assert_eq!((found.total_ns, found.hidden_ns), (26_000_000, 9_000_000));
        }
        let times = |row: &DimensionTraffic| [row.total_ms, row.hidden_ms, row.exposed_ms];
        let rows: Vec<_> = tallies.traffic().collect();
        let [reductions, gathers] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(times(reductions), [20.0, 6.0 + 3.0, 5.0]);
        assert_eq!(times(gathers), [21.0, 2.0 + 3.0, 7.0 + 5.0]);
        let buckets: Vec<_> = tallies.buckets().collect();
        let [reduction, gather] = &buckets[..] else { panic!("{buckets:?}") };
        assert_eq!(
            [reduction.mean_ms, reduction.hidden_ms, reduction.exposed_ms],
            [20.0, 9.0, 5.0]
        );
        assert_eq!([gather.mean_ms, gather.hidden_ms, gather.exposed_ms], [10.5, 2.5, 6.0]);
    }

    #[test]
    fn an_evaluation_is_in_no_step() {
        let mut tallies = tallies();
        let now = Instant::now();
        tallies.count(false);
        add(&mut tallies, now, &[(Moved::Windows, [0, 5], [1, 5])]);
        tallies.count(true);
        add(&mut tallies, now, &[(Moved::Windows, [6, 7], [7, 7])]);
        let found = tallies.take_rest();
        assert_eq!((found.bytes, found.total_ns), (8, 1_000_000));
    }
}
