//! Weights of which each rank stores a shard: a bucket is gathered into a window ahead of its use,
//! and released after it.

use std::ops::Range;
use std::sync::Arc;

use collectives::{Element, Incoming, Operation};
use device::{Allocator, Device, View, ViewMut};
use models::{Error, memory};

use super::shard::{BucketShard, Shard};
use super::waits::Waits;
use super::weights::exchange;
use super::windows::{Use, WeightWindows};
use crate::mesh::Dimensions;
use crate::timing::tallies::Moved;

/// Pass over the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// Forward and backward of a micro-batch, which another one `follows` before the update or not.
    MicroBatch { follows: bool },
    /// Forward alone.
    Evaluation,
    /// Forward and backward of one rank without the others: it reads weights that it has instead of
    /// those that it would gather.
    Alone,
}

/// End of a pass in the order of uses, and whether the first uses follow it.
struct Pass {
    end: usize,
    follows: bool,
}

/// Weights in one format.
#[derive(Debug)]
pub(crate) struct ShardedWeights<'world, E: Element> {
    device: Device,
    /// This rank's shard of every bucket, gathered among its replicas after the update.
    shards: Incoming<'world, E>,
    has_replicas: bool,
    /// Buckets whose shards this rank has updated and not begun to gather among its replicas. These
    /// gathers start in the order in which windows need them, so that no window waits behind those
    /// of all buckets.
    unshared: Vec<bool>,
    /// Windows, gathered in the shard group.
    windows: Incoming<'world, E>,
    plan: Arc<WeightWindows>,
    buckets: Vec<Placed>,
    /// The window of each bucket that is gathered.
    resident: Vec<Option<Range<usize>>>,
    reads: Reads,
    /// Position of the current use in the plan.
    position: Option<usize>,
}

/// Ranges of one bucket.
#[derive(Debug)]
struct Placed {
    /// Range in the flat weights.
    flat: Range<usize>,
    /// Range of this rank's shard in the bucket.
    offsets: Range<usize>,
    /// Range of this rank's shard in the stored weights.
    stored: Range<usize>,
}

impl<'world, E: Element> ShardedWeights<'world, E> {
    /// Allocates zeros.
    pub(super) fn new(
        shard: &Shard,
        plan: Arc<WeightWindows>,
        dimensions: &Dimensions<'world>,
        stored: &Allocator,
    ) -> Result<Self, collectives::Error> {
        let Dimensions { shard: shard_group, data, .. } = dimensions;
        let deadline = shard_group.deadline();
        let shards = data.collective.buffer(stored, shard.stored, deadline)?;
        let allocator = stored.for_purpose(memory::WEIGHT_WINDOWS);
        let windows = shard_group.collective.buffer(&allocator, plan.len, deadline)?;
        let placed = |bucket: &BucketShard| Placed {
            flat: bucket.range.clone(),
            offsets: bucket.shard_offsets(),
            stored: bucket.stored.clone(),
        };
        Ok(Self {
            device: stored.device(),
            shards: Incoming::new(data.collective, shards),
            has_replicas: shard.owner.replicas > 1,
            unshared: vec![false; shard.buckets.len()],
            windows: Incoming::new(shard_group.collective, windows),
            plan,
            resident: vec![None; shard.buckets.len()],
            buckets: shard.buckets.iter().map(placed).collect(),
            reads: Reads::Evaluation,
            position: None,
        })
    }

    /// Returns the length of the flat weights.
    pub(super) fn flat_len(&self) -> usize {
        self.buckets.last().map_or(0, |bucket| bucket.flat.end)
    }

    /// Returns a range of the stored weights.
    ///
    /// # Panics
    /// Panics if some of it is still to be gathered among replicas.
    pub(super) fn stored(&self, range: Range<usize>) -> View<'_, E> {
        self.require_shared(&range);
        self.shards.get(range)
    }

    /// Returns a range of the stored weights, to be written. Windows have the former ones until
    /// they are [discarded](Self::discard).
    ///
    /// # Panics
    /// As of [`stored`](Self::stored).
    pub(super) fn stored_mut(&mut self, range: Range<usize>) -> ViewMut<'_, E> {
        self.require_shared(&range);
        self.shards.get_mut(range)
    }

    fn require_shared(&self, range: &Range<usize>) {
        let first = self.buckets.partition_point(|bucket| bucket.stored.end <= range.start);
        let buckets = self.buckets[first..].iter().zip(&self.unshared[first..]);
        let mut buckets = buckets
            .take_while(|(bucket, _)| bucket.stored.start < range.end)
            .filter(|(_, is_unshared)| **is_unshared);
        assert!(buckets.next().is_none(), "some of {range:?} is not gathered among replicas");
    }

    /// Returns whether any weights are in flight, or are to be.
    pub(super) fn is_any_in_flight(&self) -> bool {
        let all = |weights: &Incoming<'_, E>| weights.is_in_flight(&(0..weights.len()));
        self.unshared.contains(&true) || all(&self.shards) || all(&self.windows)
    }

    /// Returns the number of buckets whose gather among replicas has not started.
    #[cfg(test)]
    pub(super) fn unshared(&self) -> usize {
        self.unshared.iter().filter(|is_unshared| **is_unshared).count()
    }

    /// Returns what is in the windows.
    #[cfg(test)]
    pub(super) fn all_windows(&self) -> Vec<E> {
        self.windows.get(0..self.windows.len()).host().to_vec()
    }

    /// Waits until no weights are in flight. Collective after an update, whose weights it shares.
    pub(super) fn wait_for_all(&mut self, waits: Waits<'_, '_>) -> Result<(), collectives::Error> {
        let plan = Arc::clone(&self.plan);
        plan.uses[..plan.forward].iter().try_for_each(|it| self.start_sharing(it.bucket))?;
        let Self { shards, windows, .. } = self;
        waits.wait(Moved::Weights, shards, &(0..shards.len()))?;
        waits.wait(Moved::Windows, windows, &(0..windows.len()))
    }

    /// Releases all windows, because stored weights are about to change. No weights may be in
    /// flight.
    pub(super) fn discard(&mut self) {
        self.resident.fill(None);
        self.position = None;
    }

    /// Takes a bucket that this rank has updated. If it is among the first that are read, starts to
    /// gather it: among replicas if there are any, or else into its window.
    pub(super) fn share(&mut self, bucket: usize) -> Result<(), Error> {
        self.unshared[bucket] = self.has_replicas;
        let plan = Arc::clone(&self.plan);
        let mut first = plan.resident(0, plan.forward, false);
        match first.find(|first| first.bucket == bucket) {
            Some(_) if self.has_replicas => self.start_sharing(bucket).map_err(exchange),
            Some(first) => self.gather(first),
            None => Ok(()),
        }
    }

    /// Starts to gather this rank's shard of a bucket among its replicas, unless that has started.
    fn start_sharing(&mut self, bucket: usize) -> Result<(), collectives::Error> {
        match std::mem::take(&mut self.unshared[bucket]) {
            true => self.shards.start(Operation::AllGather, self.buckets[bucket].stored.clone()),
            false => Ok(()),
        }
    }

    /// Begins a pass, and starts to gather what it reads first.
    pub(super) fn begin(&mut self, reads: Reads, waits: Waits<'_, '_>) -> Result<(), Error> {
        self.reads = reads;
        self.position = None;
        match reads {
            Reads::Alone => self.fill_free_windows(),
            Reads::MicroBatch { .. } | Reads::Evaluation => self.gather_from(0, waits),
        }
    }

    /// Copies weights that this rank stores to the windows without a gathered bucket, as products
    /// of zeros take another time. None may be in flight.
    fn fill_free_windows(&mut self) -> Result<(), Error> {
        let Self { device, shards, windows, resident, .. } = self;
        let mut taken: Vec<Range<usize>> = resident.iter().flatten().cloned().collect();
        taken.sort_by_key(|window| window.start);
        taken.push(windows.len()..windows.len());
        let mut free = 0;
        for window in taken {
            while free < window.start {
                let end = window.start.min(free + shards.len());
                device.copy(windows.get_mut(free..end), shards.get(0..end - free))?;
                free = end;
            }
            free = window.end;
        }
        Ok(())
    }

    /// Returns the weights of one segment, given by its flat range, once they are gathered.
    ///
    /// # Panics
    /// Panics if the segment is not the next in the order of uses.
    pub(super) fn segment(
        &mut self,
        range: &Range<usize>,
        waits: Waits<'_, '_>,
    ) -> Result<View<'_, E>, Error> {
        let bucket = self.buckets.partition_point(|bucket| bucket.flat.end <= range.start);
        let plan = Arc::clone(&self.plan);
        let is_current = |position: usize| plan.uses[position].bucket == bucket;
        let position = match self.position.filter(|&position| is_current(position)) {
            Some(position) => position,
            None => self.advance(bucket, waits)?,
        };
        let window = plan.uses[position].window.clone();
        waits.wait(Moved::Windows, &mut self.windows, &window).map_err(exchange)?;
        let start = window.start + range.start - self.buckets[bucket].flat.start;
        Ok(self.windows.get(start..start + range.len()))
    }

    /// Proceeds to the next use.
    fn advance(&mut self, bucket: usize, waits: Waits<'_, '_>) -> Result<usize, Error> {
        let position = self.position.map_or(0, |position| position + 1);
        let Pass { end, .. } = self.pass();
        let expected = self.plan.uses[..end].get(position).map(|expected| expected.bucket);
        assert_eq!(expected, Some(bucket), "buckets are read in the order of their uses");
        self.position = Some(position);
        self.gather_from(position, waits)?;
        Ok(position)
    }

    /// Releases the windows that are not resident while a position is read, and starts to gather
    /// those that are.
    fn gather_from(&mut self, position: usize, waits: Waits<'_, '_>) -> Result<(), Error> {
        if self.reads == Reads::Alone {
            return Ok(());
        }
        let plan = Arc::clone(&self.plan);
        let Pass { end, follows } = self.pass();
        let resident = || plan.resident(position, end, follows);
        for (bucket, window) in self.resident.iter_mut().enumerate() {
            let Some(range) = window.clone() else { continue };
            let is_kept = |kept: &Use| kept.bucket == bucket && kept.window == range;
            if plan.releases && !resident().any(is_kept) {
                waits.wait(Moved::Windows, &mut self.windows, &range).map_err(exchange)?;
                *window = None;
            }
        }
        for next in resident() {
            if self.resident[next.bucket].is_none() {
                self.start_sharing(next.bucket).map_err(exchange)?;
                let stored = &self.buckets[next.bucket].stored;
                waits.wait(Moved::Weights, &mut self.shards, stored).map_err(exchange)?;
                self.gather(next)?;
            }
        }
        // One ahead of the windows, so that the next does not wait for it.
        for later in plan.resident(position + 1, end, follows) {
            self.start_sharing(later.bucket).map_err(exchange)?;
        }
        Ok(())
    }

    /// Returns the uses of the current pass.
    fn pass(&self) -> Pass {
        match self.reads {
            Reads::MicroBatch { follows } => Pass { end: self.plan.uses.len(), follows },
            Reads::Evaluation => Pass { end: self.plan.forward, follows: false },
            Reads::Alone => Pass { end: self.plan.uses.len(), follows: false },
        }
    }

    /// Starts to gather a bucket into its window, from shards that are not in flight.
    fn gather(&mut self, next: &Use) -> Result<(), Error> {
        let Self { device, shards, windows, buckets, resident, .. } = self;
        let Placed { offsets, stored, .. } = &buckets[next.bucket];
        let start = next.window.start;
        let own = windows.get_mut(start + offsets.start..start + offsets.end);
        device.copy(own, shards.get(stored.clone()))?;
        windows.start(Operation::AllGather, next.window.clone()).map_err(exchange)?;
        resident[next.bucket] = Some(next.window.clone());
        Ok(())
    }
}
