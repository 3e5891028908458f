//! Parts of the flat buffers that a rank owns, holds and stores.
//!
//! Rank r of the owners *owns* the r-th part of every bucket: it sums its squares for the norm, and
//! saves it. Under a sharded optimizer a rank *holds* moments (and master weights, if there are
//! working weights) only of the elements that it owns; otherwise of all elements. Where weights are
//! sharded, it *stores* of the weights that the engine computes with only its shard: the elements
//! that the ranks of its place in all shard groups own.

use std::ops::Range;

use collectives::{BucketPlan, Operation};
use models::Layout;
use models::layout::Tensor;

use crate::config::Sharded;

/// Place of a rank among the owners.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) rank: usize,
    pub(crate) world: usize,
    /// Ranks with the same place in their shard groups: owners of one shard, one after the other.
    pub(crate) replicas: usize,
}

impl Owner {
    /// The only rank.
    #[cfg(test)]
    pub(crate) const ALONE: Self = Self { rank: 0, world: 1, replicas: 1 };
}

/// Parts of one rank.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) buckets: Vec<BucketShard>,
    /// Number of elements held.
    pub(crate) held: usize,
    /// Number of elements stored.
    pub(crate) stored: usize,
    /// Number of elements of the flat buffers.
    pub(crate) len: usize,
    /// Place of this rank.
    pub(crate) owner: Owner,
    /// State of which this rank has its part only.
    pub(crate) sharded: Sharded,
}

/// Part of one bucket. Ranges are in the flat buffers unless they say otherwise.
#[derive(Debug)]
pub(crate) struct BucketShard {
    /// Range of the whole bucket.
    pub(crate) range: Range<usize>,
    /// Range of this rank's part.
    pub(crate) part: Range<usize>,
    /// Range that this rank holds: its part, or the whole bucket.
    pub(crate) own: Range<usize>,
    /// Range of the same elements in the buffers of held elements.
    pub(crate) held: Range<usize>,
    /// Range that this rank stores: its shard, or the whole bucket.
    pub(crate) shard: Range<usize>,
    /// Range of the same elements in the buffer of stored weights.
    pub(crate) stored: Range<usize>,
    /// Pieces of its tensors that this rank holds.
    pub(crate) pieces: Vec<Piece>,
}

/// Range of elements of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Index into [`Layout::tensors`].
    pub(crate) tensor: usize,
    /// Range in the flat buffers.
    pub(crate) flat: Range<usize>,
    /// Range in the buffers of held elements.
    pub(crate) held: Range<usize>,
    /// Range in the buffer of stored weights.
    pub(crate) stored: Range<usize>,
}

impl Shard {
    /// Creates the shard of a rank.
    pub(crate) fn new(layout: &Layout, plan: &BucketPlan, owner: Owner, sharded: Sharded) -> Self {
        let Owner { rank, world, replicas } = owner;
        let mut held = 0;
        let mut stored = 0;
        let shard = |bucket: &collectives::Bucket| {
            let whole = || bucket.range.clone();
            let part = bucket.part(rank, world);
            let own = if sharded >= Sharded::Optimizer { part.clone() } else { whole() };
            let shard = match sharded {
                Sharded::Weights => bucket.part(rank / replicas, world / replicas),
                _ => whole(),
            };
            let held_start = held;
            let stored_start = stored;
            held += own.len();
            stored += shard.len();
            let own_start = stored_start + own.start - shard.start;
            let piece = Piece {
                tensor: 0,
                held: held_start..held,
                stored: own_start..own_start + own.len(),
                flat: own.clone(),
            };
            BucketShard {
                range: whole(),
                part,
                held: held_start..held,
                stored: stored_start..stored,
                pieces: piece.of_tensors(layout),
                own,
                shard,
            }
        };
        let buckets = plan.buckets.iter().map(shard).collect();
        Self { buckets, held, stored, len: plan.len, owner, sharded }
    }

    /// Returns whether each rank holds only the elements that it owns.
    pub(crate) fn is_sharded(&self) -> bool {
        self.sharded >= Sharded::Optimizer
    }

    /// Returns the reduction of gradients: each rank needs those of the elements that it holds.
    pub(crate) fn reduction(&self) -> Operation {
        if self.is_sharded() { Operation::ReduceScatterSum } else { Operation::AllReduceSum }
    }

    /// Returns the number of elements that this rank updates, without padding.
    pub(crate) fn elements(&self) -> usize {
        self.pieces().map(|piece| piece.flat.len()).sum()
    }

    /// Returns the number of elements of this rank's parts, with padding, even if it holds more.
    pub(crate) fn part_elements(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.part.len()).sum()
    }

    /// Returns all held pieces, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.buckets.iter().flat_map(|bucket| &bucket.pieces)
    }

    /// Returns the pieces that this rank saves: its parts, even if it holds more. All ranks
    /// together have each element once.
    pub(crate) fn saved(&self) -> impl Iterator<Item = Piece> {
        self.buckets.iter().flat_map(|bucket| {
            bucket.pieces.iter().filter_map(move |piece| piece.within(&bucket.part))
        })
    }
}

impl Piece {
    /// Returns its pieces of single tensors.
    fn of_tensors(&self, layout: &Layout) -> Vec<Self> {
        let tensors = layout.tensors().iter().enumerate();
        let inside = tensors.filter_map(|(tensor, t)| {
            let piece = self.within(&t.range)?;
            Some(Self { tensor, ..piece })
        });
        inside.collect()
    }

    /// Returns the range in its tensor.
    pub(crate) fn elements(&self, tensor: &Tensor) -> Range<usize> {
        self.flat.start - tensor.range.start..self.flat.end - tensor.range.start
    }

    /// Returns its intersection with a range of the flat buffers.
    fn within(&self, range: &Range<usize>) -> Option<Self> {
        let flat = self.flat.start.max(range.start)..self.flat.end.min(range.end);
        let offset = flat.start.checked_sub(self.flat.start)?;
        let from = |start: usize| start + offset..start + offset + flat.len();
        (!flat.is_empty()).then(|| Self {
            tensor: self.tensor,
            held: from(self.held.start),
            stored: from(self.stored.start),
            flat: flat.clone(),
        })
    }
}

impl BucketShard {
    /// Returns the range of what this rank holds in the buffer of stored weights.
    pub(crate) fn own_stored(&self) -> Range<usize> {
        let start = self.stored.start + self.own.start - self.shard.start;
        start..start + self.own.len()
    }

    /// Returns the range of a piece in what this rank holds of the bucket.
    pub(crate) fn own_offsets(&self, piece: &Piece) -> Range<usize> {
        piece.flat.start - self.own.start..piece.flat.end - self.own.start
    }

    /// Returns the range of what this rank stores in the bucket.
    pub(crate) fn shard_offsets(&self) -> Range<usize> {
        self.shard.start - self.range.start..self.shard.end - self.range.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::step::placed_layout;

    /// Returns for each tensor the number of ranks that have each element.
    fn owners(world: usize, sharded: Sharded, of: impl Fn(&Shard) -> Vec<Piece>) -> Vec<Vec<u8>> {
        let several = ["collectives.bucket_bytes=262144".to_owned()];
        let config = Config::load("smoke", &several).unwrap();
        let (layout, plan) = placed_layout(&config, world);
        assert!(plan.buckets.len() > 1);
        let mut owners: Vec<Vec<u8>> =
            layout.tensors().iter().map(|tensor| vec![0; tensor.range.len()]).collect();
        let is_sharded = sharded > Sharded::None;
        let replicas = if world.is_multiple_of(2) { 2 } else { 1 };
        for rank in 0..world {
            let shard = Shard::new(&layout, &plan, Owner { rank, world, replicas }, sharded);
            assert_eq!(shard.held, plan.len / if is_sharded { world } else { 1 });
            let stores_shard = sharded == Sharded::Weights;
            let shards = if stores_shard { world / replicas } else { 1 };
            assert_eq!(shard.stored, plan.len / shards);
            for piece in of(&shard) {
                let start = layout.tensors()[piece.tensor].range.start;
                assert_eq!(piece.flat.len(), piece.held.len());
                assert_eq!(piece.flat.len(), piece.stored.len());
                assert!(piece.held.end <= shard.held && piece.stored.end <= shard.stored);
                assert!(is_sharded || piece.flat == piece.held, "held as in the flat buffers");
                assert!(stores_shard || piece.flat == piece.stored, "stored as in them");
                let own = piece.flat.start - start..piece.flat.end - start;
                owners[piece.tensor][own].iter_mut().for_each(|count| *count += 1);
            }
        }
        owners
    }

    #[test]
    fn every_element_is_saved_once_and_held_by_one_rank_or_by_all() {
        for world in [1, 2, 3, 4] {
            let all = |counts: Vec<Vec<u8>>, expected| {
                assert!(counts.iter().flatten().all(|&count| count == expected), "{world} ranks");
            };
            for sharded in [Sharded::Optimizer, Sharded::Weights] {
                all(owners(world, sharded, |shard| shard.saved().collect()), 1);
                all(owners(world, sharded, |shard| shard.pieces().cloned().collect()), 1);
            }
            all(owners(world, Sharded::None, |shard| shard.saved().collect()), 1);
            let held = owners(world, Sharded::None, |shard| shard.pieces().cloned().collect());
            all(held, world as u8);
        }
    }

    #[test]
    fn a_rank_stores_what_its_replicas_own() {
        let config = Config::load("smoke", &["collectives.bucket_bytes=262144".into()]).unwrap();
        let (layout, plan) = placed_layout(&config, 6);
        let shard = |rank| {
            let owner = Owner { rank, world: 6, replicas: 2 };
            Shard::new(&layout, &plan, owner, Sharded::Weights)
        };
        for (first, second) in [(0, 1), (2, 3), (4, 5)] {
            for (one, other) in shard(first).buckets.iter().zip(shard(second).buckets) {
                assert_eq!(one.shard, one.part.start..other.part.end);
                assert_eq!((&one.shard, &one.stored), (&other.shard, &other.stored));
                assert_eq!(one.own_stored().end, other.own_stored().start);
            }
        }
    }
}
