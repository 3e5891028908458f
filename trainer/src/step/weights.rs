//! Weights in the format that the engine computes in. Under a sharded optimizer each rank updates
//! its part of every bucket, and buckets are all-gathered during the next forward.

use std::ops::Range;
use std::time::Instant;

use collectives::{Element, Incoming, Operation, Settled, Timing};
use device::{Allocator, DeviceBuffer, ViewMut};
use half::bf16;
use models::workload::Compute;
use models::{WeightSource, Weights, memory};

use super::shard::{BucketShard, Shard};
use crate::failure::Outcome;
use crate::ranks::Ranks;
use crate::timing::communication::CommunicationTally;
use crate::timing::phase::PhaseClock;
use record::phase::Phase;

/// Master weights and working weights. A bucket in flight is neither read nor written before the
/// wait for it has returned.
#[derive(Debug)]
pub(crate) enum ModelWeights<'world> {
    /// The engine computes with the master weights, flat.
    F32(Incoming<'world, f32>),
    /// The engine computes with rounded weights.
    Bf16 {
        /// Rounded master weights, flat. Not in checkpoints.
        working: Incoming<'world, bf16>,
        /// Master weights, held.
        master: DeviceBuffer<f32>,
    },
}

impl<'world> ModelWeights<'world> {
    /// Allocates zeros. Weights that are gathered are in memory that the backend chooses.
    pub(super) fn new(
        shard: &Shard,
        compute: Compute,
        ranks: &Ranks<'world>,
        allocator: &Allocator,
    ) -> Result<Self, collectives::Error> {
        Ok(match compute {
            Compute::F32 => {
                Self::F32(gathered(shard, ranks, &allocator.for_purpose(memory::WEIGHTS))?)
            }
            Compute::Bf16 => Self::Bf16 {
                master: allocator.for_purpose(memory::MASTER_WEIGHTS).zeros(shard.held),
                working: gathered(shard, ranks, &allocator.for_purpose(memory::WORKING_WEIGHTS))?,
            },
        })
    }

    /// Returns the length of the flat weights in elements.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(weights) => weights.len(),
            Self::Bf16 { working, .. } => working.len(),
        }
    }

    /// Returns the bytes of one working weight that is not the master weight itself.
    pub(crate) fn working_bytes(&self) -> usize {
        match self {
            Self::F32(_) => 0,
            Self::Bf16 { .. } => size_of::<bf16>(),
        }
    }

    /// Returns whether any part of a range is in flight.
    pub(crate) fn is_in_flight(&self, range: &Range<usize>) -> bool {
        match self {
            Self::F32(weights) => weights.is_in_flight(range),
            Self::Bf16 { working, .. } => working.is_in_flight(range),
        }
    }

    /// Waits for the buckets in flight that overlap a range, and reports the timing of each. Where
    /// a device computes, the device waits.
    pub(crate) fn wait(
        &mut self,
        range: &Range<usize>,
        deadline: Instant,
        report: impl FnMut(Timing),
    ) -> Result<(), collectives::Error> {
        match self {
            Self::F32(weights) => weights.wait(range, deadline, report),
            Self::Bf16 { working, .. } => working.wait(range, deadline, report),
        }
    }

    /// Returns a range of the weights that the engine computes with.
    pub(crate) fn get(&self, range: Range<usize>) -> Weights<'_> {
        match self {
            Self::F32(weights) => Weights::from(weights.get(range)),
            Self::Bf16 { working, .. } => Weights::from(working.get(range)),
        }
    }
}

/// Allocates a flat buffer, which is gathered if ranks update different parts of it.
fn gathered<'world, E: Element>(
    shard: &Shard,
    ranks: &Ranks<'world>,
    allocator: &Allocator,
) -> Result<Incoming<'world, E>, collectives::Error> {
    let buffer = if shard.is_sharded {
        ranks.collective.buffer(allocator, shard.len, ranks.deadline())?
    } else {
        allocator.zeros(shard.len)
    };
    Ok(Incoming::new(ranks.collective, buffer))
}

/// Runs `update` on each bucket of the flat weights, from the last to the first, the order in which
/// forward needs them. Where ranks hold different parts, it starts the all-gather of a bucket as
/// soon as the bucket is updated, and waits for none: the reader does.
///
/// No gather reads a bucket that is written here. Every bucket has a segment that forward has
/// waited for, so this rank's last gather of the bucket is complete; and then, as
/// [`Collective`](collectives::Collective) guarantees, no peer reads this rank's part any more,
/// even if it is in shared memory. For the same reason no gather is in flight when backward starts
/// reductions, so that at most as many operations are in flight as there are buckets, which is less
/// than `OUTSTANDING_MAX`.
pub(super) fn update_and_gather<E: Element>(
    shard: &Shard,
    weights: &mut Incoming<'_, E>,
    mut update: impl FnMut(&BucketShard, ViewMut<'_, E>) -> Outcome<()>,
) -> Outcome<()> {
    for bucket in shard.buckets.iter().rev() {
        update(bucket, weights.get_mut(bucket.range.clone()))?;
        if shard.is_sharded {
            weights.start(Operation::AllGather, bucket.range.clone())?;
        }
    }
    Ok(())
}

/// Weights of one rank, which may be in flight: the wait for a segment begins when it is read, and
/// not earlier. That wait is exposed communication.
#[derive(Debug)]
pub(crate) struct ArrivingWeights<'step, 'world> {
    weights: &'step mut ModelWeights<'world>,
    gathers: &'step mut CommunicationTally,
    clock: &'step PhaseClock,
    ranks: Ranks<'world>,
    /// True if the device may still wait for weights that were waited for here.
    is_unsettled: bool,
}

impl<'step, 'world> ArrivingWeights<'step, 'world> {
    pub(super) fn new(
        weights: &'step mut ModelWeights<'world>,
        gathers: &'step mut CommunicationTally,
        clock: &'step PhaseClock,
        ranks: Ranks<'world>,
    ) -> Self {
        Self { weights, gathers, clock, ranks, is_unsettled: false }
    }

    /// Waits until no part of a range is in flight.
    pub(super) fn wait(&mut self, range: &Range<usize>) -> Result<(), collectives::Error> {
        if !self.weights.is_in_flight(range) {
            return self.settle_if_all_were_waited_for();
        }
        self.is_unsettled = true;
        let phase = self.clock.phase();
        let wait_start = Instant::now();
        self.clock.enter(Phase::CommExposed);
        let report = |timing| self.gathers.add(timing, wait_start);
        self.weights.wait(range, wait_start + self.ranks.timeout, report)?;
        self.clock.enter(phase);
        Ok(())
    }

    /// Settles once no weights are in flight. The host must not be ahead of a device by a whole
    /// step while a gather may hang: the work that it starts would block it without a deadline.
    fn settle_if_all_were_waited_for(&mut self) -> Result<(), collectives::Error> {
        let is_any_in_flight = self.weights.is_in_flight(&(0..self.weights.len()));
        if self.is_unsettled && !is_any_in_flight { self.settle() } else { Ok(()) }
    }

    /// Blocks until the device, if one computes, has all weights that were waited for.
    pub(super) fn settle(&mut self) -> Result<(), collectives::Error> {
        let phase = self.clock.phase();
        self.clock.enter(Phase::CommExposed);
        let report = &mut |gather: Settled| self.gathers.add(gather.timing, gather.wait_start);
        self.ranks.collective.settle(self.ranks.timeout, report)?;
        self.clock.enter(phase);
        self.is_unsettled = false;
        Ok(())
    }
}

impl WeightSource for ArrivingWeights<'_, '_> {
    fn flat_len(&self) -> usize {
        self.weights.len()
    }

    fn segment(&mut self, range: &Range<usize>) -> Result<Weights<'_>, models::Error> {
        self.wait(range).map_err(|error| models::Error::Weights(Box::new(error)))?;
        Ok(self.weights.get(range.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use collectives::{Collective, Threads};

    use super::*;

    /// Starts to gather the last four of eight weights, of which each rank contributes two.
    fn gather(rank: &Threads) -> Incoming<'_, f32> {
        let own = 1.0 + rank.rank() as f32;
        let buffer = Allocator::host().zeros(8).filled(|weights| weights.fill(own));
        let mut weights = Incoming::new(rank, buffer);
        weights.start(Operation::AllGather, 4..8).unwrap();
        weights
    }

    /// Delays the gather of the other rank until some time after this one has begun to wait.
    #[test]
    fn forward_waits_only_for_the_weights_it_reads_and_the_wait_is_exposed() {
        let group = Threads::group(2);
        let timeout = Duration::from_secs(20);
        let (start, started) = mpsc::channel();
        std::thread::scope(|scope| {
            let peer = &group[1];
            scope.spawn(move || {
                started.recv().unwrap();
                std::thread::sleep(Duration::from_millis(200));
                gather(peer).wait(&(0..8), Instant::now() + timeout, |_| ()).unwrap();
            });
            let weights = &mut ModelWeights::F32(gather(&group[0]));
            let start = start; // if this closure panics, dropped before the weights, which wait
            let gathers = &mut CommunicationTally::new(Operation::AllGather, &group[0]);
            let clock = &mut PhaseClock::new();
            clock.start_step();
            clock.enter(Phase::Forward);
            let ranks = Ranks::new(&group[0], timeout);
            let mut arriving = ArrivingWeights::new(weights, gathers, clock, ranks);
            let Weights::F32(own) = arriving.segment(&(0..4)).unwrap() else { panic!("f32") };
            assert_eq!(own.host(), [1.0; 4], "not in flight");
            start.send(()).unwrap();
            let wait_start = Instant::now();
            let Weights::F32(gathered) = arriving.segment(&(2..8)).unwrap() else { panic!("f32") };
            let waited_ns = wait_start.elapsed().as_nanos() as u64;
            assert_eq!(gathered.host(), [1.0, 1.0, 1.0, 1.0, 2.0, 2.0]);
            assert_eq!(clock.phase(), Phase::Forward, "the wait restores the phase");
            let phases = clock.finish_step().unwrap().phases;
            assert!(phases.comm_exposed >= waited_ns / 2, "{phases:?}, waited {waited_ns} ns");
            let reported = gathers.take();
            assert!(reported.total_ns > 0 && reported.hidden_ns == 0, "{reported:?}");
            assert_eq!(reported.bytes, 16);
        });
    }
}
