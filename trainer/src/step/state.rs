//! State of training: weights and both Adam moments in flat buffers, and the progress.

use std::iter;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use checkpoint::{Frozen, Snapshot};
use device::cuda::{self, Downloads};
use device::{Allocator, Device, DeviceBuffer, Place, View, ViewMut};
use half::bf16;
use models::layout::ALIGN;
use models::ops;
use models::ops::step::{AdamWViews, Decays, StepOps, UpdatedViews};
use models::workload::Compute;
use models::{Layout, Weights, memory};
use serde::{Deserialize, Serialize};

use super::frozen::{Lent, SavedRange, SharedDownloads};
use super::optimizer::Update;
use super::scalars::Scalars;
use super::shard::{BucketShard, Piece, Shard};
use super::sharded_weights::Reads;
use super::waits::Waits;
use super::weights::{ArrivingWeights, ModelWeights, update_and_share};
use super::windows::WeightWindows;
use crate::bit_flip::{BitFlip, FlippedValue};
use crate::data::Batches;
use crate::failure::Outcome;
use crate::mesh::Dimensions;

/// Prefix of the names of weights in a checkpoint.
pub(crate) const WEIGHTS: &str = "model";

/// State of one rank. *Held* buffers are laid out by [`Shard`]: all elements, or under a sharded
/// optimizer this rank's part of every bucket. *Flat* buffers are laid out by [`Layout`]: all
/// elements.
#[derive(Debug)]
pub(crate) struct State<'world> {
    dimensions: Dimensions<'world>,
    pub(crate) layout: Layout,
    pub(crate) shard: Shard,
    /// Master weights and working weights.
    pub(crate) weights: ModelWeights<'world>,
    /// First Adam moment, held.
    pub(crate) exp_avg: DeviceBuffer<f32>,
    /// Second Adam moment, held.
    pub(crate) exp_avg_sq: DeviceBuffer<f32>,
    /// Blocks of held elements that decay, as in [`Decays`].
    decays: DeviceBuffer<u8>,
    /// Progress of training.
    pub(crate) progress: Progress,
    /// Lent state, while a checkpoint copies it.
    pub(super) lent: Option<Lent>,
    /// Downloads that copy the state from a device.
    downloads: Option<SharedDownloads>,
}

/// Layout of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Stored,
    Held,
}

impl Order {
    /// Returns the range of a piece.
    pub(crate) fn of(self, piece: &Piece) -> Range<usize> {
        match self {
            Self::Stored => piece.stored.clone(),
            Self::Held => piece.held.clone(),
        }
    }
}

/// Buffer of the state that is in checkpoints.
#[derive(Debug)]
pub(crate) struct StateBuffer<Elements> {
    /// Prefix of the names of its tensors.
    pub(crate) prefix: &'static str,
    pub(crate) order: Order,
    pub(crate) elements: Elements,
}

/// Layout of the buffers that checkpoints hold.
#[derive(Debug)]
pub(crate) struct SavedLayout<'state> {
    pub(crate) shard: &'state Shard,
    pub(crate) layout: &'state Layout,
    /// Buffers in the order of [`State::buffers`].
    pub(crate) buffers: [StateBuffer<()>; 3],
}

/// Buffers of a state to fill, and their layout.
#[derive(Debug)]
pub(crate) struct StateBuffersMut<'state> {
    pub(crate) shard: &'state Shard,
    pub(crate) layout: &'state Layout,
    pub(crate) buffers: [StateBuffer<ViewMut<'state, f32>>; 3],
    pub(crate) writer: &'state Writer<'state>,
}

/// Writes to the memory of a device, and keeps the first error.
#[derive(Debug)]
pub(crate) struct Writer<'state> {
    device: &'state Device,
    error: Mutex<Option<cuda::Error>>,
}

/// Elements of a state that a restore fills.
#[derive(Debug)]
pub(crate) struct HeldElements<'state> {
    pub(crate) elements: ViewMut<'state, f32>,
    pub(crate) writer: &'state Writer<'state>,
}

impl checkpoint::Memory for HeldElements<'_> {
    fn size_bytes(&self) -> usize {
        self.elements.len() * size_of::<f32>()
    }

    fn write(&mut self, start: usize, bytes: &[u8]) {
        let to = self.elements.reborrow().into_bytes().slice(start..start + bytes.len());
        if let Err(error) = self.writer.device.write(to, bytes) {
            let mut first = self.writer.error.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(error);
        }
    }
}

/// Progress of training. The step does not determine all of it, because the global batch may depend
/// on the world size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Completed steps.
    pub(crate) step: u64,
    /// Global index of the first sequence of the next step.
    pub(crate) next_sequence: u64,
    /// Tokens trained on.
    pub(crate) tokens: u64,
}

impl Progress {
    /// Adds one step.
    pub(super) fn advance(&mut self, batches: &Batches) {
        self.step += 1;
        self.next_sequence += batches.global_sequences() as u64;
        self.tokens += batches.tokens_per_step();
    }
}

/// Marks the held blocks of the tensors that decay; every piece starts with a block.
fn mark_decaying(layout: &Layout, shard: &Shard, blocks: &mut [u8]) {
    for piece in shard.pieces().filter(|piece| layout.tensors()[piece.tensor].decay) {
        blocks[piece.held.start / ALIGN..piece.held.end.div_ceil(ALIGN)].fill(1);
    }
}

impl<'world> State<'world> {
    /// Creates a state of zeros.
    pub(crate) fn new(
        layout: Layout,
        shard: Shard,
        compute: Compute,
        windows: Option<WeightWindows>,
        dimensions: Dimensions<'world>,
        allocator: &Allocator,
    ) -> Result<Self, collectives::Error> {
        // Written at once: a page that is first read and then written, as in the first update, has
        // two page faults, and the second interrupts all cores.
        let moment = |purpose| {
            let zeros: DeviceBuffer<f32> = allocator.for_purpose(purpose).zeros(shard.held);
            if zeros.place() == Some(Place::Host) { zeros.filled(ops::clear) } else { zeros }
        };
        let [exp_avg, exp_avg_sq] = [memory::FIRST_MOMENT, memory::SECOND_MOMENT].map(moment);
        let blocks = allocator.for_purpose("blocks that decay").zeros(shard.held.div_ceil(ALIGN));
        let decays = blocks.filled(|blocks| mark_decaying(&layout, &shard, blocks));
        Ok(Self {
            weights: ModelWeights::new(&shard, windows, compute, &dimensions, allocator)?,
            decays,
            exp_avg,
            exp_avg_sq,
            dimensions,
            layout,
            shard,
            progress: Progress::default(),
            lent: None,
            downloads: None,
        })
    }

    /// Returns whether weights are gathered into windows.
    pub(super) fn has_windows(&self) -> bool {
        self.weights.has_windows()
    }

    /// Prepares copies of the state from the device that it is on.
    pub(super) fn open_downloads(&mut self, device: &Device) -> Outcome<()> {
        if let Device::Cuda(device) = device {
            self.downloads = Some(Arc::new(Mutex::new(Downloads::new(device)?)));
        }
        Ok(())
    }

    /// Returns the layout, and the weights for forward.
    pub(crate) fn arriving<'step>(
        &'step mut self,
        waits: Waits<'step, 'world>,
    ) -> (&'step Layout, ArrivingWeights<'step, 'world>) {
        (&self.layout, ArrivingWeights::new(&mut self.weights, waits))
    }

    /// Waits until no weights are in flight, including those that a device waits for.
    pub(super) fn synchronize(
        &mut self,
        waits: Waits<'_, 'world>,
    ) -> Result<(), collectives::Error> {
        self.arriving(waits).1.synchronize()
    }

    /// Gathers the weights that the next micro-batch reads first, and waits until none are in
    /// flight, so that what follows has communication of its own.
    pub(super) fn gather_first(&mut self, waits: Waits<'_, 'world>) -> Outcome<()> {
        let (_, mut weights) = self.arriving(waits);
        weights.begin(Reads::MicroBatch { follows: false })?;
        Ok(weights.synchronize()?)
    }

    /// Updates the elements that this rank holds, bucket by bucket, with their reduced gradients,
    /// and starts gathering each bucket.
    pub(crate) fn update<'gradients>(
        &mut self,
        update: &Update<'_>,
        gradients: &dyn Fn(&BucketShard) -> View<'gradients, f32>,
        ops: &dyn StepOps,
    ) -> Outcome<()> {
        self.take_back();
        let Self { shard, weights, exp_avg, exp_avg_sq, decays, .. } = self;
        let mut adamw = |bucket: &BucketShard,
                         weights: ViewMut<'_, f32>,
                         working: Option<ViewMut<'_, bf16>>| {
            let views = AdamWViews {
                weights,
                working,
                gradients: gradients(bucket),
                exp_avg: exp_avg.view_mut().slice(bucket.held.clone()),
                exp_avg_sq: exp_avg_sq.view_mut().slice(bucket.held.clone()),
            };
            let decays = Decays { blocks: decays.view(), first: bucket.held.start };
            ops.adamw(views, decays, update.with_decay())
        };
        match weights {
            ModelWeights::F32(weights) => update_and_share(shard, weights, |bucket, weights| {
                Ok(adamw(bucket, weights, None)?)
            }),
            ModelWeights::Bf16 { working, master } => {
                update_and_share(shard, working, |bucket, working| {
                    let master = master.view_mut().slice(bucket.held.clone());
                    Ok(adamw(bucket, master, Some(working))?)
                })
            }
        }
    }

    /// Adds the squares of this rank's parts of the weights, and of their last update, to two sums.
    /// No weights may be in flight.
    ///
    /// The sums over all ranks, in their order, have the same bits whether or not the optimizer is
    /// sharded. Padding does not count.
    pub(super) fn add_update_squares(
        &self,
        last: &Update<'_>,
        ops: &mut dyn StepOps,
        mut sums: ViewMut<'_, f64>,
    ) -> Outcome<()> {
        for piece in self.shard.saved() {
            let views = UpdatedViews {
                weights: self.weights.master(&piece),
                exp_avg: self.exp_avg.view().slice(piece.held.clone()),
                exp_avg_sq: self.exp_avg_sq.view().slice(piece.held.clone()),
            };
            ops.add_update_squares(sums.reborrow(), views, last.of(piece.tensor))?;
        }
        Ok(())
    }

    /// Gathers the weights that the engine computes with, from the master weights that each rank
    /// holds. Collective.
    pub(crate) fn all_gather_weights(
        &mut self,
        waits: Waits<'_, 'world>,
        ops: &dyn StepOps,
    ) -> Outcome<()> {
        self.synchronize(waits)?;
        let Self { shard, weights, .. } = self;
        match weights {
            ModelWeights::F32(weights) => update_and_share(shard, weights, |_, _| Ok(())),
            ModelWeights::Bf16 { working, master } => {
                update_and_share(shard, working, |bucket, mut working| {
                    for piece in &bucket.pieces {
                        let master = master.view().slice(piece.held.clone());
                        let own = working.reborrow().slice(bucket.own_offsets(piece));
                        ops.narrow(own, master)?;
                    }
                    Ok(())
                })
            }
        }?;
        self.synchronize(waits)?;
        waits.tallies.borrow_mut().discard_gathers();
        Ok(())
    }

    /// Makes one weight that the engine computes with huge, for a drill; none may be in flight.
    /// Windows that are gathered already stay as they are, so that all ranks still gather the same.
    pub(super) fn corrupt(&mut self, device: &Device) -> Outcome<()> {
        const HUGE: f32 = 1e30;
        self.take_back();
        match &mut self.weights {
            ModelWeights::F32(weights) => {
                device.write(weights.stored_mut(0..1), &[HUGE])?;
            }
            ModelWeights::Bf16 { working, .. } => {
                device.write(working.stored_mut(0..1), &[bf16::from_f32(HUGE)])?;
            }
        }
        Ok(())
    }

    /// Flips bits of a weight that the engine computes with, or of a first moment, for a drill; no
    /// weights may be in flight.
    pub(super) fn flip(
        &mut self,
        value: FlippedValue,
        flip: BitFlip,
        device: &Device,
    ) -> Outcome<()> {
        self.take_back();
        let Self { shard, weights, exp_avg, .. } = self;
        if value == FlippedValue::Moments {
            let element = flip.below(shard.held);
            return Ok(flip.apply(device, exp_avg.view_mut().slice(element..element + 1))?);
        }
        let element = flip.below(shard.stored);
        let element = element..element + 1;
        match weights {
            ModelWeights::F32(weights) => flip.apply(device, weights.stored_mut(element)),
            ModelWeights::Bf16 { working, .. } => flip.apply(device, working.stored_mut(element)),
        }?;
        Ok(())
    }

    /// Adds up what replicas have in common: the weights that this rank stores and, unless each has
    /// one owner, master weights and moments. No weights may be in flight.
    pub(super) fn add_replica_sums(
        &self,
        ops: &mut dyn StepOps,
        scalars: &mut Scalars,
    ) -> Outcome<()> {
        let Self { shard, weights, exp_avg, exp_avg_sq, .. } = self;
        let (stored, master): (Weights<'_>, _) = match weights {
            ModelWeights::F32(weights) => (weights.stored(0..shard.stored).into(), None),
            ModelWeights::Bf16 { working, master } => {
                (working.stored(0..shard.stored).into(), Some(master.view()))
            }
        };
        let held = [exp_avg.view(), exp_avg_sq.view()].into_iter().chain(master);
        let common = held.filter(|_| !shard.is_sharded()).map(Weights::F32);
        for (buffer, elements) in iter::once(stored).chain(common).enumerate() {
            ops.add_sums(scalars.replica_mut(buffer), elements, 0)?;
        }
        Ok(())
    }

    /// Returns the buffers that checkpoints hold. No weights may be in flight.
    pub(crate) fn buffers(&self) -> [StateBuffer<View<'_, f32>>; 3] {
        let Self { shard, weights, exp_avg, exp_avg_sq, .. } = self;
        let (order, weights) = match weights {
            ModelWeights::F32(weights) => (Order::Stored, weights.stored(0..shard.stored)),
            ModelWeights::Bf16 { master, .. } => (Order::Held, master.view()),
        };
        state_buffers(order, [weights, exp_avg.view(), exp_avg_sq.view()])
    }

    /// Returns the layout of the buffers that checkpoints hold.
    pub(crate) fn saved_layout(&self) -> SavedLayout<'_> {
        let Self { shard, layout, weights, .. } = self;
        let order = match weights {
            ModelWeights::F32(_) => Order::Stored,
            ModelWeights::Bf16 { .. } => Order::Held,
        };
        SavedLayout { shard, layout, buffers: state_buffers(order, [(); 3]) }
    }

    /// Lends ranges of the saved buffers to a checkpoint until it has copied them, or until the
    /// state is about to change. A device continues its work meanwhile.
    pub(crate) fn lend(
        &mut self,
        ranges: Arc<[SavedRange]>,
        copy: impl FnOnce(Box<dyn Frozen>) -> Snapshot,
    ) -> Outcome<()> {
        self.take_back();
        if let Some(downloads) = &self.downloads {
            downloads.lock().unwrap_or_else(PoisonError::into_inner).begin()?;
        }
        let (lent, frozen) = Lent::new(self.buffers(), ranges, self.downloads.clone());
        self.lent = Some(lent.to(copy(Box::new(frozen))));
        Ok(())
    }

    /// Returns whether a checkpoint still copies the state.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Waits until no checkpoint copies the state. The wait is short enough that other ranks, which
    /// wait for this rank in a collective operation, do not give up.
    pub(crate) fn take_back(&mut self) {
        if let Some(lent) = self.lent.take() {
            lent.take_back(self.dimensions.owners.timeout / 2);
        }
    }

    /// Lets `fill` replace the saved buffers.
    pub(crate) fn fill_buffers<T>(
        &mut self,
        device: &Device,
        fill: impl FnOnce(StateBuffersMut<'_>) -> Outcome<T>,
    ) -> Outcome<T> {
        self.take_back();
        let Self { shard, layout, weights, exp_avg, exp_avg_sq, .. } = self;
        let (order, weights) = match weights {
            ModelWeights::F32(weights) => (Order::Stored, weights.stored_mut(0..shard.stored)),
            ModelWeights::Bf16 { master, .. } => (Order::Held, master.view_mut()),
        };
        let buffers = state_buffers(order, [weights, exp_avg.view_mut(), exp_avg_sq.view_mut()]);
        let writer = Writer { device, error: Mutex::new(None) };
        let filled = fill(StateBuffersMut { shard, layout, buffers, writer: &writer });
        match writer.error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error.into()),
            None => filled,
        }
    }
}

impl Drop for State<'_> {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// Adds the prefixes and orders of weights and both moments.
fn state_buffers<T>(order: Order, buffers: [T; 3]) -> [StateBuffer<T>; 3] {
    let [weights, exp_avg, exp_avg_sq] = buffers;
    let held = |prefix, elements| StateBuffer { prefix, order: Order::Held, elements };
    [
        StateBuffer { prefix: WEIGHTS, order, elements: weights },
        held("optimizer.exp_avg", exp_avg),
        held("optimizer.exp_avg_sq", exp_avg_sq),
    ]
}
