//! Weights in the format that the engine computes in. Under a sharded optimizer each rank updates
//! its part of every bucket, and buckets are all-gathered during the next forward; sharded weights
//! are gathered again and again, into windows.

use std::ops::Range;
use std::sync::Arc;

use collectives::{Element, Incoming, Operation};
use device::{Allocator, DeviceBuffer, View, ViewMut};
use half::bf16;
use models::workload::Compute;
use models::{Error, WeightSource, Weights, memory};

use super::shard::{BucketShard, Piece, Shard};
use super::sharded_weights::{Reads, ShardedWeights};
use super::waits::Waits;
use super::windows::WeightWindows;
use crate::failure::Outcome;
use crate::mesh::Dimensions;
use crate::timing::tallies::Moved;

/// Master weights and working weights. A bucket in flight is neither read nor written before the
/// wait for it has returned.
#[derive(Debug)]
pub(crate) enum ModelWeights<'world> {
    /// The engine computes with the master weights.
    F32(EngineWeights<'world, f32>),
    /// The engine computes with rounded weights.
    Bf16 {
        /// Rounded master weights. Not in checkpoints.
        working: EngineWeights<'world, bf16>,
        /// Master weights, held.
        master: DeviceBuffer<f32>,
    },
}

/// Weights that the engine computes with.
#[derive(Debug)]
pub(crate) enum EngineWeights<'world, E: Element> {
    /// All of them, flat.
    Whole(Incoming<'world, E>),
    /// Those of this rank's shard, and windows of others.
    Sharded(Box<ShardedWeights<'world, E>>),
}

impl<'world> ModelWeights<'world> {
    /// Allocates zeros.
    pub(super) fn new(
        shard: &Shard,
        windows: Option<WeightWindows>,
        compute: Compute,
        dimensions: &Dimensions<'world>,
        allocator: &Allocator,
    ) -> Result<Self, collectives::Error> {
        let windows = windows.map(Arc::new);
        Ok(match compute {
            Compute::F32 => {
                let allocator = allocator.for_purpose(memory::WEIGHTS);
                Self::F32(EngineWeights::new(shard, windows, dimensions, &allocator)?)
            }
            Compute::Bf16 => {
                let master = allocator.for_purpose(memory::MASTER_WEIGHTS).zeros(shard.held);
                let allocator = allocator.for_purpose(memory::WORKING_WEIGHTS);
                let working = EngineWeights::new(shard, windows, dimensions, &allocator)?;
                Self::Bf16 { working, master }
            }
        })
    }

    /// Returns whether weights are gathered into windows.
    pub(super) fn has_windows(&self) -> bool {
        match self {
            Self::F32(weights) => matches!(weights, EngineWeights::Sharded(_)),
            Self::Bf16 { working, .. } => matches!(working, EngineWeights::Sharded(_)),
        }
    }

    /// Returns the length of the flat weights in elements.
    pub(crate) fn flat_len(&self) -> usize {
        match self {
            Self::F32(weights) => weights.flat_len(),
            Self::Bf16 { working, .. } => working.flat_len(),
        }
    }

    /// Returns the bytes of one working weight that is not the master weight itself.
    pub(crate) fn working_bytes(&self) -> usize {
        match self {
            Self::F32(_) => 0,
            Self::Bf16 { .. } => size_of::<bf16>(),
        }
    }

    /// Returns the master weights of a piece. No weights may be in flight.
    pub(super) fn master(&self, piece: &Piece) -> View<'_, f32> {
        match self {
            Self::F32(weights) => weights.stored(piece.stored.clone()),
            Self::Bf16 { master, .. } => master.view().slice(piece.held.clone()),
        }
    }

    /// Returns the master weights of a piece, to be written; none may be in flight.
    pub(super) fn master_mut(&mut self, piece: &Piece) -> ViewMut<'_, f32> {
        match self {
            Self::F32(weights) => weights.stored_mut(piece.stored.clone()),
            Self::Bf16 { master, .. } => master.view_mut().slice(piece.held.clone()),
        }
    }

    /// Begins a pass over the weights, and starts to gather those that it reads first.
    fn begin(&mut self, reads: Reads, waits: Waits<'_, '_>) -> Result<(), Error> {
        match self {
            Self::F32(weights) => weights.begin(reads, waits),
            Self::Bf16 { working, .. } => working.begin(reads, waits),
        }
    }

    /// Returns the weights of one segment, once they have arrived.
    fn segment(
        &mut self,
        range: &Range<usize>,
        waits: Waits<'_, '_>,
    ) -> Result<Weights<'_>, Error> {
        Ok(match self {
            Self::F32(weights) => Weights::from(weights.segment(range, waits)?),
            Self::Bf16 { working, .. } => Weights::from(working.segment(range, waits)?),
        })
    }

    /// Waits until no weights are in flight.
    fn wait_for_all(&mut self, waits: Waits<'_, '_>) -> Result<(), collectives::Error> {
        match self {
            Self::F32(weights) => weights.wait_for_all(waits),
            Self::Bf16 { working, .. } => working.wait_for_all(waits),
        }
    }

    /// Returns whether any weights are in flight.
    pub(super) fn is_any_in_flight(&self) -> bool {
        match self {
            Self::F32(weights) => weights.is_any_in_flight(),
            Self::Bf16 { working, .. } => working.is_any_in_flight(),
        }
    }
}

impl<'world, E: Element> EngineWeights<'world, E> {
    /// Allocates zeros, where weights are gathered in memory that the backend chooses.
    fn new(
        shard: &Shard,
        windows: Option<Arc<WeightWindows>>,
        dimensions: &Dimensions<'world>,
        allocator: &Allocator,
    ) -> Result<Self, collectives::Error> {
        if let Some(windows) = windows {
            let weights = ShardedWeights::new(shard, windows, dimensions, allocator)?;
            return Ok(Self::Sharded(Box::new(weights)));
        }
        let owners = dimensions.owners;
        let buffer = if shard.is_sharded() {
            owners.collective.buffer(allocator, shard.len, owners.deadline())?
        } else {
            allocator.zeros(shard.len)
        };
        Ok(Self::Whole(Incoming::new(owners.collective, buffer)))
    }

    fn flat_len(&self) -> usize {
        match self {
            Self::Whole(weights) => weights.len(),
            Self::Sharded(weights) => weights.flat_len(),
        }
    }

    /// Returns a range of the weights that this rank stores; none of them may be in flight.
    pub(super) fn stored(&self, range: Range<usize>) -> View<'_, E> {
        match self {
            Self::Whole(weights) => weights.get(range),
            Self::Sharded(weights) => weights.stored(range),
        }
    }

    /// Returns a range of the weights that this rank stores, to be written; none of them may be in
    /// flight. Afterwards [`update_and_share`] has to share them.
    pub(super) fn stored_mut(&mut self, range: Range<usize>) -> ViewMut<'_, E> {
        match self {
            Self::Whole(weights) => weights.get_mut(range),
            Self::Sharded(weights) => weights.stored_mut(range),
        }
    }

    /// Releases what was gathered of weights that are about to change.
    pub(super) fn discard(&mut self) {
        match self {
            Self::Whole(_) => {}
            Self::Sharded(weights) => weights.discard(),
        }
    }

    fn begin(&mut self, reads: Reads, waits: Waits<'_, '_>) -> Result<(), Error> {
        match self {
            Self::Whole(_) => Ok(()),
            Self::Sharded(weights) => weights.begin(reads, waits),
        }
    }

    fn segment(
        &mut self,
        range: &Range<usize>,
        waits: Waits<'_, '_>,
    ) -> Result<View<'_, E>, Error> {
        match self {
            Self::Whole(weights) => {
                waits.wait(Moved::Weights, weights, range).map_err(exchange)?;
                Ok(weights.get(range.clone()))
            }
            Self::Sharded(weights) => weights.segment(range, waits),
        }
    }

    fn wait_for_all(&mut self, waits: Waits<'_, '_>) -> Result<(), collectives::Error> {
        match self {
            Self::Whole(weights) => {
                let all = 0..weights.len();
                waits.wait(Moved::Weights, weights, &all)
            }
            Self::Sharded(weights) => weights.wait_for_all(waits),
        }
    }

    fn is_any_in_flight(&self) -> bool {
        match self {
            Self::Whole(weights) => weights.is_in_flight(&(0..weights.len())),
            Self::Sharded(weights) => weights.is_any_in_flight(),
        }
    }
}

/// Returns a failure of weights or gradients on their way between ranks.
pub(super) fn exchange(error: collectives::Error) -> Error {
    Error::Exchange(Box::new(error))
}

/// Runs `update` on what this rank holds of each bucket of the weights, from the last bucket to the
/// first, the order in which forward needs them. Where ranks hold different parts, it shares a
/// bucket as soon as it is updated, and waits for none: the reader does.
///
/// No gather reads a bucket that is written here. Every bucket has a segment that forward has
/// waited for, so this rank's last gather of the bucket is complete; and then, as
/// [`Collective`](collectives::Collective) guarantees, no peer reads this rank's part any more,
/// even if it is in shared memory. For the same reason no gather of whole weights is in flight when
/// backward starts reductions, so that at most as many operations are in flight as there are
/// buckets, and a few windows, which is less than `OUTSTANDING_MAX`.
pub(super) fn update_and_share<E: Element>(
    shard: &Shard,
    weights: &mut EngineWeights<'_, E>,
    mut update: impl FnMut(&BucketShard, ViewMut<'_, E>) -> Outcome<()>,
) -> Outcome<()> {
    weights.discard();
    for (index, bucket) in shard.buckets.iter().enumerate().rev() {
        update(bucket, weights.stored_mut(bucket.own_stored()))?;
        match weights {
            EngineWeights::Whole(weights) if shard.is_sharded() => {
                weights.start(Operation::AllGather, bucket.range.clone())?;
            }
            EngineWeights::Whole(_) => {}
            EngineWeights::Sharded(weights) => weights.share(index)?,
        }
    }
    Ok(())
}

/// Weights of one rank, which may be in flight: the wait for a segment begins when it is read, and
/// not earlier. That wait is exposed communication.
#[derive(Debug)]
pub(crate) struct ArrivingWeights<'step, 'world> {
    weights: &'step mut ModelWeights<'world>,
    waits: Waits<'step, 'world>,
    reads: Reads,
    /// True if the device may still wait for weights that were waited for here.
    is_unsettled: bool,
}

impl<'step, 'world> ArrivingWeights<'step, 'world> {
    pub(super) fn new(
        weights: &'step mut ModelWeights<'world>,
        waits: Waits<'step, 'world>,
    ) -> Self {
        let reads = Reads::MicroBatch { follows: false };
        Self { weights, waits, reads, is_unsettled: false }
    }

    /// Begins a pass over the weights, and starts to gather those that it reads first.
    pub(super) fn begin(&mut self, reads: Reads) -> Result<(), Error> {
        self.reads = reads;
        self.weights.begin(reads, self.waits)
    }

    /// Waits until no weights are in flight, including those that a device waits for.
    pub(super) fn synchronize(&mut self) -> Result<(), collectives::Error> {
        self.weights.wait_for_all(self.waits)?;
        self.settle()
    }

    /// Settles once no weights are in flight. The host must not be ahead of a device by a whole
    /// step while a gather may hang: the work that it starts would block it without a deadline.
    fn settle_if_all_were_waited_for(&mut self) -> Result<(), collectives::Error> {
        if self.is_unsettled && !self.weights.is_any_in_flight() { self.settle() } else { Ok(()) }
    }

    /// Blocks until the device, if one computes, has all weights that were waited for.
    pub(super) fn settle(&mut self) -> Result<(), collectives::Error> {
        self.waits.settle()?;
        self.is_unsettled = false;
        Ok(())
    }
}

impl WeightSource for ArrivingWeights<'_, '_> {
    fn flat_len(&self) -> usize {
        self.weights.flat_len()
    }

    fn segment(&mut self, range: &Range<usize>) -> Result<Weights<'_>, Error> {
        if self.weights.is_any_in_flight() {
            self.is_unsettled = true;
        } else {
            self.settle_if_all_were_waited_for().map_err(exchange)?;
        }
        if self.reads == Reads::Evaluation {
            // It ends with a wait of the host for the device, which has no deadline.
            self.weights.segment(range, self.waits)?;
            self.settle().map_err(exchange)?;
        }
        self.weights.segment(range, self.waits)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use collectives::{Collective, Single, Threads};

    use super::*;
    use crate::mesh::Mesh;
    use crate::timing::phase::PhaseClock;
    use crate::timing::tallies::Tallies;
    use record::phase::Phase;

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
            let single = Single::new();
            let weights = &mut ModelWeights::F32(EngineWeights::Whole(gather(&group[0])));
            let start = start; // if this closure panics, dropped before the weights, which wait
            let dimensions = Mesh::flat(&group[0], &single).dimensions(timeout);
            let tallies = Tallies::new(&dimensions, Operation::ReduceScatterSum, false);
            let tallies = &RefCell::new(tallies);
            let clock = &mut PhaseClock::new();
            clock.start_step();
            clock.enter(Phase::Forward);
            let waits = Waits { tallies, clock: &*clock, dimensions };
            let mut arriving = ArrivingWeights::new(weights, waits);
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
            let reported = tallies.borrow_mut().take();
            assert!(reported.total_ns > 0 && reported.hidden_ns == 0, "{reported:?}");
            assert_eq!(reported.bytes, 16);
        });
    }
}
