//! Communication of one step, and the part of it that was hidden behind computation.

use std::mem;
use std::time::Instant;

use collectives::{Collective, Dimension, Dimensions, Interval, Operation, StageTiming, Timing};
use record::{BucketRecord, DimensionTraffic};

/// Communication of one step. An operation counts in the step that waits for it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Communication {
    /// Time in which at least one bucket was in flight.
    pub total_ns: u64,
    /// Part of the total that was hidden behind backward, the update of other buckets, and forward.
    pub hidden_ns: u64,
    /// Time from the start of the first reduction to the first wait for one, at the end of backward
    /// unless gradients are sharded; 0 if it started later.
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

/// Totals of buckets of one size over all steps but the first ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BucketTotals {
    /// Size of the buffer of each.
    pub(crate) bytes: u64,
    /// Number of times that one was communicated.
    pub(crate) count: u64,
    /// Time in flight, also while other buckets were.
    pub(crate) total_ns: u64,
    /// Shortest of those times.
    pub(crate) least_ns: u64,
    /// Part of the total before the wait for it.
    pub(crate) hidden_ns: u64,
}

impl BucketTotals {
    fn new(bytes: u64) -> Self {
        Self { bytes, count: 0, total_ns: 0, least_ns: u64::MAX, hidden_ns: 0 }
    }

    fn add(&mut self, timing: Timing, wait_start: Instant) {
        let until = |end: Instant| end.saturating_duration_since(timing.started).as_nanos() as u64;
        self.count += 1;
        self.total_ns += until(timing.ended);
        self.least_ns = self.least_ns.min(until(timing.ended));
        self.hidden_ns += until(timing.ended.min(wait_start));
    }

    /// Returns times and bandwidths of such a bucket, in a world of so many ranks.
    fn record(&self, operation: Operation, world: usize) -> BucketRecord {
        let mean_ms = self.total_ns as f64 / self.count as f64 / 1e6;
        let hidden_ms = self.hidden_ns as f64 / self.count as f64 / 1e6;
        let algbw = self.bytes as f64 / (mean_ms / 1e3).max(1e-9);
        BucketRecord {
            operation: name(operation).to_owned(),
            operations: self.count,
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

/// Time in which any of some operations was in flight.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InFlight {
    total_ns: u64,
    /// Part of the total before the wait for the operation.
    hidden_ns: u64,
    /// End of the last interval that was counted.
    counted_until: Option<Instant>,
}

impl InFlight {
    /// Adds one operation, in the order in which they were started. Where they overlap in time, the
    /// overlap counts once.
    pub(crate) fn add(&mut self, Interval { started, ended }: Interval, wait_start: Instant) {
        let from = self.counted_until.map_or(started, |until| until.max(started));
        let until = |end: Instant| end.saturating_duration_since(from).as_nanos() as u64;
        self.total_ns += until(ended);
        self.hidden_ns += until(ended.min(wait_start));
        self.counted_until = Some(from.max(ended));
    }

    /// Returns the communication of so many bytes.
    pub(crate) fn of_step(self, bytes: u64, first_bucket_lead_ns: u64) -> Communication {
        let Self { total_ns, hidden_ns, .. } = self;
        Communication { total_ns, hidden_ns, first_bucket_lead_ns, bytes }
    }
}

/// Traffic of one operation over one dimension.
#[derive(Debug)]
struct Traffic {
    dimension: Dimension,
    operation: Operation,
    /// Sums of this step.
    step: TrafficSums,
    /// Sums of all steps but the first ones.
    total: TrafficSums,
}

#[derive(Debug, Clone, Copy, Default)]
struct TrafficSums {
    operations: u64,
    sent_bytes: u64,
    in_flight: InFlight,
}

impl Traffic {
    fn new(dimension: Dimension, operation: Operation) -> Self {
        let [step, total] = [TrafficSums::default(); 2];
        Self { dimension, operation, step, total }
    }

    fn add(&mut self, stage: StageTiming, wait_start: Instant) {
        self.step.operations += 1;
        self.step.sent_bytes += stage.sent_bytes();
        self.step.in_flight.add(stage.interval, wait_start);
    }

    /// Ends a step.
    fn end_step(&mut self, is_counted: bool) {
        let TrafficSums { operations, sent_bytes, in_flight } = mem::take(&mut self.step);
        if is_counted {
            self.total.operations += operations;
            self.total.sent_bytes += sent_bytes;
            self.total.in_flight.total_ns += in_flight.total_ns;
            self.total.in_flight.hidden_ns += in_flight.hidden_ns;
        }
    }

    /// Returns the mean of so many steps.
    fn record(&self, steps: u64) -> DimensionTraffic {
        let TrafficSums { operations, sent_bytes, in_flight } = self.total;
        let per_step = |sum: u64| sum as f64 / steps as f64;
        let total_ms = per_step(in_flight.total_ns) / 1e6;
        let hidden_ms = per_step(in_flight.hidden_ns) / 1e6;
        let traffic = DimensionTraffic {
            dimension: self.dimension.name.to_owned(),
            ranks: self.dimension.ranks,
            operation: name(self.operation).to_owned(),
            operations_per_step: per_step(operations),
            bytes_per_step: per_step(sent_bytes),
            total_ms,
            hidden_ms,
            exposed_ms: total_ms - hidden_ms,
            busbw_bytes_per_second: 0.0,
        };
        traffic.with_bandwidth()
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

/// Adds up the buckets of one operation of one group of ranks, as they are waited for.
#[derive(Debug)]
pub(crate) struct CommunicationTally {
    operation: Operation,
    /// Dimensions that the operation goes over.
    dimensions: Dimensions,
    bytes: u64,
    first_bucket_lead_ns: u64,
    /// Totals by size, in the order in which buckets are first waited for.
    buckets: Vec<BucketTotals>,
    /// Traffic by dimension and operation, in the order of the first stages.
    traffic: Vec<Traffic>,
    /// Number of buckets that were waited for in this step.
    waited: usize,
    /// Number of steps before this one.
    steps: u64,
    /// Every bucket, while steps are traced.
    trace: Option<Vec<BucketSpan>>,
}

impl CommunicationTally {
    /// Creates a tally of an operation of these ranks.
    pub(crate) fn new(operation: Operation, ranks: &dyn Collective) -> Self {
        Self {
            operation,
            dimensions: ranks.dimensions(),
            bytes: 0,
            first_bucket_lead_ns: 0,
            buckets: Vec::new(),
            traffic: Vec::new(),
            waited: 0,
            steps: 0,
            trace: None,
        }
    }

    /// Adds one bucket, in the order in which buckets were started. The time before `wait_start`,
    /// when the wait for it began, was hidden.
    pub(crate) fn add(&mut self, timing: Timing, wait_start: Instant) {
        let Timing { started, bytes, .. } = timing;
        if self.waited == 0 {
            let lead = wait_start.saturating_duration_since(started);
            self.first_bucket_lead_ns = lead.as_nanos() as u64;
        }
        self.bytes += bytes as u64;
        if let Some(trace) = &mut self.trace {
            trace.push(BucketSpan { bucket: self.waited, timing });
        }
        self.waited += 1;
        self.add_bucket(timing, wait_start);
        for stage in timing.stages(self.operation, self.dimensions) {
            self.add_stage(stage, wait_start);
        }
    }

    fn add_bucket(&mut self, timing: Timing, wait_start: Instant) {
        let bytes = timing.bytes as u64;
        let known = self.buckets.iter().position(|bucket| bucket.bytes == bytes);
        let index = known.unwrap_or_else(|| {
            self.buckets.push(BucketTotals::new(bytes));
            self.buckets.len() - 1
        });
        if self.steps >= STEPS_NOT_COUNTED {
            self.buckets[index].add(timing, wait_start);
        }
    }

    fn add_stage(&mut self, stage: StageTiming, wait_start: Instant) {
        let StageTiming { dimension, operation, .. } = stage;
        let is_same = |it: &Traffic| (it.dimension, it.operation) == (dimension, operation);
        let known = self.traffic.iter().position(is_same);
        let index = known.unwrap_or_else(|| {
            self.traffic.push(Traffic::new(dimension, operation));
            self.traffic.len() - 1
        });
        self.traffic[index].add(stage, wait_start);
    }

    /// Ends a step, and begins the next one.
    pub(crate) fn begin_step(&mut self) {
        let is_counted = self.steps >= STEPS_NOT_COUNTED;
        self.steps += 1;
        self.end_step(is_counted);
    }

    /// Returns the bytes since the last call.
    pub(crate) fn take_bytes(&mut self) -> u64 {
        mem::take(&mut self.bytes)
    }

    /// Returns the time from the start of the step's first operation to the wait for it, unless it
    /// was returned.
    pub(crate) fn take_lead_ns(&mut self) -> u64 {
        mem::take(&mut self.first_bucket_lead_ns)
    }

    /// Leaves out the communication since the last step, which is no part of one.
    pub(crate) fn discard(&mut self) {
        self.end_step(false);
        self.bytes = 0;
        self.first_bucket_lead_ns = 0;
    }

    fn end_step(&mut self, is_counted: bool) {
        self.traffic.iter_mut().for_each(|traffic| traffic.end_step(is_counted));
        self.waited = 0;
    }

    /// Keeps every bucket from now on, until the trace is taken.
    pub(crate) fn start_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// Returns the buckets that were kept, and stops tracing.
    pub(crate) fn take_trace(&mut self) -> Vec<BucketSpan> {
        self.trace.take().unwrap_or_default()
    }

    /// Returns the buckets that were communicated after the first steps.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = BucketRecord> {
        let counted = self.buckets.iter().filter(|bucket| bucket.count > 0);
        counted.map(|bucket| bucket.record(self.operation, self.dimensions.ranks()))
    }

    /// Returns the traffic over each dimension in a step after the first ones.
    pub(crate) fn traffic(&self) -> impl Iterator<Item = DimensionTraffic> {
        let steps = self.steps.saturating_sub(STEPS_NOT_COUNTED);
        let counted = self.traffic.iter().filter(|traffic| traffic.total.operations > 0);
        counted.map(move |traffic| traffic.record(steps))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use collectives::Single;

    use super::*;

    fn tally(operation: Operation) -> CommunicationTally {
        CommunicationTally::new(operation, &Single::new())
    }

    #[test]
    fn buckets_of_each_size_are_counted_by_themselves_after_the_first_steps() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let timing =
            |from, to, bytes| Timing { started: at(from), ended: at(to), bytes, outer: None };
        let mut tally = tally(Operation::AllReduceSum);
        for step in 0..4 {
            let slow = if step < 2 { 500 } else { step };
            tally.add(timing(0, 10 + slow, 64), at(4));
            tally.add(timing(2, 8, 32), at(15));
            tally.add(timing(3, 9, 32), at(15));
            tally.begin_step();
        }
        let [first, second] = tally.buckets[..] else { panic!() };
        let expected = BucketTotals {
            bytes: 64,
            count: 2,
            total_ns: 25_000_000,
            least_ns: 12_000_000,
            hidden_ns: 8_000_000,
        };
        assert_eq!(first, expected);
        assert_eq!((second.bytes, second.count), (32, 4));
        assert_eq!(second.hidden_ns, 24_000_000, "hidden altogether");
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

    #[test]
    fn traffic_is_that_of_the_steps_after_the_first_ones_by_dimension() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let mut tally = CommunicationTally {
            dimensions: Dimensions {
                inner: Dimension { name: "shard", ranks: 4 },
                outer: Some(Dimension { name: "data", ranks: 2 }),
            },
            ..tally(Operation::ReduceScatterSum)
        };
        let timing = |from, middle, to| Timing {
            started: at(from),
            ended: at(to),
            bytes: 800,
            outer: Some(Interval { started: at(middle), ended: at(to) }),
        };
        tally.add(timing(0, 1, 2), at(0));
        tally.discard();
        for step in 0..4 {
            let slow = if step < 2 { 500 } else { 0 };
            tally.add(timing(0, 10, 30 + slow), at(20));
            tally.add(timing(5, 20, 40 + slow), at(20));
            tally.begin_step();
        }
        tally.add(timing(0, 10, 20), at(0)); // waited for after the last step
        let expected = |name: &str, ranks, bytes_per_step, total_ms, hidden_ms| {
            let traffic = DimensionTraffic {
                dimension: name.to_owned(),
                ranks,
                operation: "reduce_scatter".to_owned(),
                operations_per_step: 2.0,
                bytes_per_step,
                total_ms,
                hidden_ms,
                exposed_ms: total_ms - hidden_ms,
                busbw_bytes_per_second: 0.0,
            };
            traffic.with_bandwidth()
        };
        let found: Vec<_> = tally.traffic().collect();
        let shard = expected("shard", 4, 2.0 * 600.0, 20.0, 20.0);
        let data = expected("data", 2, 2.0 * 100.0, 30.0, 10.0);
        assert_eq!(found, [shard, data]);
    }
}
