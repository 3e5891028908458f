//! Communication of one step, and the part of it that was hidden behind computation.

use std::time::Instant;

use collectives::{Operation, Timing};
use record::BucketRecord;

/// Communication of one step. An operation counts in the step that waits for it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Communication {
    /// Time in which at least one bucket was in flight.
    pub total_ns: u64,
    /// Part of the total that was hidden behind backward, the update of other buckets, and forward.
    pub hidden_ns: u64,
    /// Time from the start of the first reduction to the end of backward; 0 if it started later.
    pub first_bucket_lead_ns: u64,
    /// Bytes of the buckets reduced and gathered.
    pub bytes: u64,
}

impl Communication {
    /// Adds the gathers of weights to the reductions of gradients.
    pub(crate) fn and(self, weights: Self) -> Self {
        Self {
            total_ns: self.total_ns + weights.total_ns,
            hidden_ns: self.hidden_ns + weights.hidden_ns,
            bytes: self.bytes + weights.bytes,
            ..self
        }
    }
}

/// Totals of one bucket over all steps but the first ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BucketTotals {
    /// Size of the bucket's buffer.
    pub(crate) bytes: u64,
    /// Number of times that it was communicated.
    pub(crate) count: u64,
    /// Time in flight, also while other buckets were.
    pub(crate) total_ns: u64,
    /// Shortest of those times.
    pub(crate) least_ns: u64,
    /// Part of the total before the wait for it.
    pub(crate) hidden_ns: u64,
}

impl BucketTotals {
    /// Returns times and bandwidths of the bucket, in a world of so many ranks.
    pub(crate) fn record(&self, operation: Operation, world: usize) -> BucketRecord {
        let mean_ms = self.total_ns as f64 / self.count as f64 / 1e6;
        let hidden_ms = self.hidden_ns as f64 / self.count as f64 / 1e6;
        let algbw = self.bytes as f64 / (mean_ms / 1e3).max(1e-9);
        BucketRecord {
            operation: name(operation).to_owned(),
            bytes: self.bytes,
            mean_ms,
            least_ms: self.least_ns as f64 / 1e6,
            hidden_ms,
            exposed_ms: mean_ms - hidden_ms,
            algbw_bytes_per_second: algbw,
            busbw_bytes_per_second: algbw * operation.bus_factor(world),
        }
    }
}

/// Returns the name of an operation in records.
fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::AllReduceSum => "all_reduce",
        Operation::ReduceScatterSum => "reduce_scatter",
        Operation::AllGather => "all_gather",
        _ => "other",
    }
}

/// Bucket that was in flight, in a traced step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BucketSpan {
    /// Index in the order in which buckets are waited for.
    pub(crate) bucket: usize,
    pub(crate) timing: Timing,
}

/// First steps, in which connections are made: they show nothing about bandwidth.
const STEPS_NOT_COUNTED: u64 = 2;

/// Adds up buckets as they are waited for.
#[derive(Debug, Default)]
pub(crate) struct CommunicationTally {
    sum: Communication,
    /// Totals in the order in which buckets are waited for, which is the same in every step.
    buckets: Vec<BucketTotals>,
    /// Number of buckets that were waited for in this step.
    waited: usize,
    /// Number of steps before this one.
    steps: u64,
    /// End of the last interval that was counted.
    counted_until: Option<Instant>,
    /// Every bucket, while steps are traced.
    trace: Option<Vec<BucketSpan>>,
}

impl CommunicationTally {
    /// Adds one bucket, in the order in which buckets were started. The time before `wait_start`,
    /// when the wait for it began, was hidden. Where buckets overlap in time, the overlap counts
    /// once.
    pub(crate) fn add(&mut self, timing: Timing, wait_start: Instant) {
        if self.counted_until.is_none() {
            let lead = wait_start.saturating_duration_since(timing.started);
            self.sum.first_bucket_lead_ns = lead.as_nanos() as u64;
        }
        let from = self.counted_until.map_or(timing.started, |end| end.max(timing.started));
        let until = |end: Instant| end.saturating_duration_since(from).as_nanos() as u64;
        self.sum.total_ns += until(timing.ended);
        self.sum.hidden_ns += until(timing.ended.min(wait_start));
        self.sum.bytes += timing.bytes as u64;
        self.add_bucket(timing, wait_start);
        self.counted_until =
            Some(self.counted_until.map_or(timing.ended, |end| end.max(timing.ended)));
    }

    fn add_bucket(&mut self, timing: Timing, wait_start: Instant) {
        if self.waited == self.buckets.len() {
            let bytes = timing.bytes as u64;
            let least_ns = u64::MAX;
            self.buckets.push(BucketTotals {
                bytes,
                count: 0,
                total_ns: 0,
                least_ns,
                hidden_ns: 0,
            });
        }
        if let Some(trace) = &mut self.trace {
            trace.push(BucketSpan { bucket: self.waited, timing });
        }
        let bucket = &mut self.buckets[self.waited];
        self.waited += 1;
        if self.steps < STEPS_NOT_COUNTED {
            return;
        }
        let until = |end: Instant| end.saturating_duration_since(timing.started).as_nanos() as u64;
        bucket.count += 1;
        bucket.total_ns += until(timing.ended);
        bucket.least_ns = bucket.least_ns.min(until(timing.ended));
        bucket.hidden_ns += until(timing.ended.min(wait_start));
    }

    /// Returns the sum of a step, and begins the next one.
    pub(crate) fn take(&mut self) -> Communication {
        self.waited = 0;
        self.steps += 1;
        self.counted_until = None;
        std::mem::take(&mut self.sum)
    }

    /// Keeps every bucket from now on, until the trace is taken.
    pub(crate) fn start_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// Returns the buckets that were kept, and stops tracing.
    pub(crate) fn take_trace(&mut self) -> Vec<BucketSpan> {
        self.trace.take().unwrap_or_default()
    }

    /// Returns every bucket that was communicated after the first steps.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = &BucketTotals> {
        self.buckets.iter().filter(|bucket| bucket.count > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_with_several_buckets_in_flight_counts_once() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let timing = |from, to| Timing { started: at(from), ended: at(to), bytes: 8 };
        let mut tally = CommunicationTally::default();
        // Backward ends at 30. The second is inside the first, the third overlaps, and the fourth,
        // after a gap, is exposed.
        for bucket in [timing(10, 20), timing(12, 18), timing(15, 35), timing(40, 45)] {
            tally.add(bucket, at(30));
        }
        let found = tally.take();
        assert_eq!(found.total_ns, 30_000_000);
        assert_eq!(found.hidden_ns, 20_000_000);
        assert_eq!(found.first_bucket_lead_ns, 20_000_000);
        assert_eq!(found.bytes, 32);
        assert_eq!(tally.take().total_ns, 0, "taking resets the tally");
    }

    #[test]
    fn buckets_are_counted_by_themselves_after_the_first_steps() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let timing = |from, to, bytes| Timing { started: at(from), ended: at(to), bytes };
        let mut tally = CommunicationTally::default();
        for step in 0..4 {
            let slow = if step < 2 { 500 } else { step };
            tally.add(timing(0, 10 + slow, 64), at(4));
            tally.add(timing(2, 8, 32), at(15));
            tally.take();
        }
        let [first, second] = tally.buckets().copied().collect::<Vec<_>>()[..] else { panic!() };
        let expected = BucketTotals {
            bytes: 64,
            count: 2,
            total_ns: 25_000_000,
            least_ns: 12_000_000,
            hidden_ns: 8_000_000,
        };
        assert_eq!(first, expected);
        assert_eq!((second.bytes, second.hidden_ns), (32, 12_000_000), "hidden altogether");
    }

    #[test]
    fn each_bucket_is_hidden_until_the_wait_for_it() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let timing = |from, to| Timing { started: at(from), ended: at(to), bytes: 8 };
        let mut tally = CommunicationTally::default();
        tally.add(timing(0, 10), at(4)); // forward waits 6
        tally.add(timing(2, 20), at(15)); // forward computes from 10 to 15 and waits 5
        tally.add(timing(20, 30), at(40)); // arrived before it was needed
        let found = tally.take();
        assert_eq!((found.total_ns, found.hidden_ns), (30_000_000, 19_000_000));
    }

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        let totals = BucketTotals {
            bytes: 8_000_000,
            count: 2,
            total_ns: 4_000_000,
            least_ns: 1_500_000,
            hidden_ns: 3_000_000,
        };
        let of = |operation| totals.record(operation, 4);
        let reduced = of(Operation::AllReduceSum);
        assert_eq!((reduced.mean_ms, reduced.hidden_ms, reduced.exposed_ms), (2.0, 1.5, 0.5));
        assert_eq!(reduced.algbw_bytes_per_second, 4e9);
        assert_eq!(reduced.busbw_bytes_per_second, 6e9);
        assert_eq!(of(Operation::AllGather).busbw_bytes_per_second, 3e9);
        assert_eq!(of(Operation::ReduceScatterSum).busbw_bytes_per_second, 3e9);
    }
}
