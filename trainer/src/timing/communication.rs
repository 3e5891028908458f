//! Communication of one step, and the part of it that was hidden behind computation.

use std::mem;

use collectives::{Collective, Dimension, Dimensions, Interval, Operation, StageTiming, Timing};
use record::{BucketRecord, DimensionTraffic};

use super::intervals::{Intervals, between_ns};

/// Communication of one step. An operation counts in the step that waits for it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Communication {
    /// Time in which at least one bucket was in flight.
    pub total_ns: u64,
    /// Part of the total in which this rank did not wait: hidden behind backward, the update of
    /// other buckets, and forward.
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
    /// Part of the total in which the rank waited for no bucket at all.
    pub(crate) hidden_ns: u64,
    /// Time in which the rank waited for one of these.
    pub(crate) exposed_ns: u64,
}

impl BucketTotals {
    fn new(bytes: u64) -> Self {
        Self { bytes, count: 0, total_ns: 0, least_ns: u64::MAX, hidden_ns: 0, exposed_ns: 0 }
    }

    /// Adds a bucket of a rank that stopped at these times, for this or for others.
    fn add(&mut self, WaitedFor { timing, wait }: WaitedFor, waits: &Intervals) {
        let Timing { started, ended, .. } = timing;
        let elapsed_ns = between_ns(started, ended);
        self.count += 1;
        self.total_ns += elapsed_ns;
        self.least_ns = self.least_ns.min(elapsed_ns);
        self.hidden_ns += waits.outside_ns(Interval { started, ended });
        self.exposed_ns += between_ns(wait.started, wait.ended);
    }

    /// Returns times and bandwidths of such a bucket, in a world of so many ranks.
    fn record(&self, operation: Operation, world: usize) -> BucketRecord {
        let mean = |sum_ns: u64| sum_ns as f64 / self.count as f64 / 1e6;
        let mean_ms = mean(self.total_ns);
        let algbw = self.bytes as f64 / (mean_ms / 1e3).max(1e-9);
        BucketRecord {
            operation: name(operation).to_owned(),
            operations: self.count,
            bytes: self.bytes,
            mean_ms,
            least_ms: self.least_ns as f64 / 1e6,
            hidden_ms: mean(self.hidden_ns),
            exposed_ms: mean(self.exposed_ns),
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

/// Operation that the rank has waited for.
#[derive(Debug, Clone, Copy)]
struct WaitedFor {
    timing: Timing,
    /// Time in which the rank, or its device, computed nothing because of the operation.
    wait: Interval,
}

impl WaitedFor {
    /// Returns the part of the wait for a stage: all before the first one ends, and from the start
    /// of the last one on. Those of all stages add up to the wait.
    fn for_stage(&self, Interval { started, ended }: Interval) -> u64 {
        let Self { timing, wait } = self;
        let from = if started == timing.started { wait.started } else { started.max(wait.started) };
        let to = if ended == timing.ended { wait.ended } else { ended.min(wait.ended) };
        between_ns(from, to)
    }
}

/// Traffic of one operation over one dimension.
#[derive(Debug)]
struct Traffic {
    dimension: Dimension,
    operation: Operation,
    /// Times that are not counted yet.
    in_flight: Intervals,
    /// Sums of this step.
    step: TrafficSums,
    /// Sums of all steps but the first ones.
    total: TrafficSums,
}

#[derive(Debug, Clone, Copy, Default)]
struct TrafficSums {
    operations: u64,
    sent_bytes: u64,
    total_ns: u64,
    hidden_ns: u64,
    exposed_ns: u64,
}

impl Traffic {
    fn new(dimension: Dimension, operation: Operation) -> Self {
        let [step, total] = [TrafficSums::default(); 2];
        Self { dimension, operation, in_flight: Intervals::default(), step, total }
    }

    fn add(&mut self, stage: StageTiming, exposed_ns: u64) {
        self.step.operations += 1;
        self.step.sent_bytes += stage.sent_bytes();
        self.step.exposed_ns += exposed_ns;
        self.in_flight.add(stage.interval);
    }

    /// Counts the time in flight of a rank that waited at these times.
    fn count(&mut self, waits: &Intervals) {
        self.in_flight.unite();
        self.step.total_ns += self.in_flight.total_ns();
        self.step.hidden_ns += self.in_flight.without_ns(waits);
        self.in_flight.clear();
    }

    /// Ends a step.
    fn end_step(&mut self, is_counted: bool) {
        let step = mem::take(&mut self.step);
        if is_counted {
            self.total.operations += step.operations;
            self.total.sent_bytes += step.sent_bytes;
            self.total.total_ns += step.total_ns;
            self.total.hidden_ns += step.hidden_ns;
            self.total.exposed_ns += step.exposed_ns;
        }
    }

    /// Returns the mean of so many steps.
    fn record(&self, steps: u64) -> DimensionTraffic {
        let TrafficSums { operations, sent_bytes, total_ns, hidden_ns, exposed_ns } = self.total;
        let per_step = |sum: u64| sum as f64 / steps as f64;
        let traffic = DimensionTraffic {
            dimension: self.dimension.name.to_owned(),
            ranks: self.dimension.ranks,
            operation: name(self.operation).to_owned(),
            operations_per_step: per_step(operations),
            bytes_per_step: per_step(sent_bytes),
            total_ms: per_step(total_ns) / 1e6,
            hidden_ms: per_step(hidden_ns) / 1e6,
            exposed_ms: per_step(exposed_ns) / 1e6,
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
    /// Buckets that were waited for and are not counted yet.
    uncounted: Vec<WaitedFor>,
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
            uncounted: Vec::new(),
            waited: 0,
            steps: 0,
            trace: None,
        }
    }

    /// Adds one bucket, and the wait for it.
    pub(crate) fn add(&mut self, timing: Timing, wait: Interval) {
        if self.waited == 0 {
            self.first_bucket_lead_ns = between_ns(timing.started, wait.started);
        }
        self.bytes += timing.bytes as u64;
        if let Some(trace) = &mut self.trace {
            trace.push(BucketSpan { bucket: self.waited, timing });
        }
        self.waited += 1;
        self.uncounted.push(WaitedFor { timing, wait });
    }

    /// Counts the buckets since the last call, of a rank that waited at these times.
    pub(crate) fn count(&mut self, waits: &Intervals) {
        for index in 0..self.uncounted.len() {
            let bucket = self.uncounted[index];
            self.count_bucket(bucket, waits);
            for stage in bucket.timing.stages(self.operation, self.dimensions) {
                self.traffic_of(stage).add(stage, bucket.for_stage(stage.interval));
            }
        }
        self.uncounted.clear();
        self.traffic.iter_mut().for_each(|traffic| traffic.count(waits));
    }

    fn count_bucket(&mut self, bucket: WaitedFor, waits: &Intervals) {
        let bytes = bucket.timing.bytes as u64;
        let known = self.buckets.iter().position(|bucket| bucket.bytes == bytes);
        let index = known.unwrap_or_else(|| {
            self.buckets.push(BucketTotals::new(bytes));
            self.buckets.len() - 1
        });
        if self.steps >= STEPS_NOT_COUNTED {
            self.buckets[index].add(bucket, waits);
        }
    }

    fn traffic_of(&mut self, stage: StageTiming) -> &mut Traffic {
        let StageTiming { dimension, operation, .. } = stage;
        let is_same = |it: &Traffic| (it.dimension, it.operation) == (dimension, operation);
        let known = self.traffic.iter().position(is_same);
        let index = known.unwrap_or_else(|| {
            self.traffic.push(Traffic::new(dimension, operation));
            self.traffic.len() - 1
        });
        &mut self.traffic[index]
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
        self.uncounted.clear();
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
    use std::time::{Duration, Instant};

    use collectives::Single;

    use super::*;

    fn tally(operation: Operation) -> CommunicationTally {
        CommunicationTally::new(operation, &Single::new())
    }

    #[test]
    fn buckets_of_each_size_are_counted_by_themselves_after_the_first_steps() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let between = |from, to| Interval { started: at(from), ended: at(to) };
        let timing =
            |from, to, bytes| Timing { started: at(from), ended: at(to), bytes, outer: None };
        let mut tally = tally(Operation::AllReduceSum);
        for step in 0..4 {
            let slow = if step < 2 { 500 } else { step };
            let mut waits = Intervals::default();
            waits.add(between(4, 10 + slow));
            tally.add(timing(0, 10 + slow, 64), between(4, 10 + slow));
            tally.add(timing(2, 8, 32), between(600, 600));
            tally.add(timing(3, 4, 32), between(600, 600));
            tally.count(&waits);
            tally.begin_step();
        }
        let [first, second] = tally.buckets[..] else { panic!() };
        let expected = BucketTotals {
            bytes: 64,
            count: 2,
            total_ns: 25_000_000,
            least_ns: 12_000_000,
            hidden_ns: 8_000_000,
            exposed_ns: 17_000_000,
        };
        assert_eq!(first, expected);
        assert_eq!((second.bytes, second.count), (32, 4));
        let counted = [second.total_ns, second.hidden_ns, second.exposed_ns];
        assert_eq!(counted, [14_000_000, 6_000_000, 0], "the rank waited for the first meanwhile");
    }

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        let totals = BucketTotals {
            bytes: 8_000_000,
            count: 2,
            total_ns: 4_000_000,
            least_ns: 1_500_000,
            hidden_ns: 3_000_000,
            exposed_ns: 1_000_000,
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
        let between = |from, to| Interval { started: at(from), ended: at(to) };
        tally.add(timing(0, 1, 2), between(0, 2));
        tally.discard();
        for step in 0..4 {
            let slow = if step < 2 { 500 } else { 0 };
            let operations = [
                // The first half of this wait is for the stage over shard groups.
                (timing(2, 10, 30 + slow), between(0, 20)),
                (timing(5, 20, 40 + slow), between(25, 45 + slow)),
            ];
            let mut waits = Intervals::default();
            for (timing, wait) in operations {
                waits.add(wait);
                tally.add(timing, wait);
            }
            waits.unite();
            tally.count(&waits);
            tally.begin_step();
        }
        tally.add(timing(0, 10, 20), between(0, 20)); // waited for after the last step
        let expected =
            |name: &str, ranks, bytes_per_step, [total_ms, hidden_ms, exposed_ms]: [f64; 3]| {
                let traffic = DimensionTraffic {
                    dimension: name.to_owned(),
                    ranks,
                    operation: "reduce_scatter".to_owned(),
                    operations_per_step: 2.0,
                    bytes_per_step,
                    total_ms,
                    hidden_ms,
                    exposed_ms,
                    busbw_bytes_per_second: 0.0,
                };
                traffic.with_bandwidth()
            };
        let found: Vec<_> = tally.traffic().collect();
        let shard = expected("shard", 4, 2.0 * 600.0, [18.0, 0.0, 10.0]);
        let data = expected("data", 2, 2.0 * 100.0, [30.0, 5.0, 10.0 + 20.0]);
        assert_eq!(found, [shard, data]);
    }
}
