//! Part of the flat buffers that a rank owns.
//!
//! Rank r owns the r-th part of every bucket: it sums its squares for the norm, and saves it. Under
//! a sharded optimizer a rank holds moments (and master weights, if there are working weights) only
//! of the elements that it owns; otherwise of all elements.

use std::ops::Range;

use collectives::{BucketPlan, Operation};
use models::Layout;
use models::layout::Tensor;

/// Parts of one rank.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) buckets: Vec<BucketShard>,
    /// Number of elements held.
    pub(crate) held: usize,
    /// Number of elements of the flat buffers.
    pub(crate) len: usize,
    /// True if each rank holds only the elements that it owns.
    pub(crate) is_sharded: bool,
}

/// Part of one bucket. Ranges are in the flat buffers.
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
}

impl Shard {
    /// Creates the shard of `rank` of `world`.
    pub(crate) fn new(
        layout: &Layout,
        plan: &BucketPlan,
        rank: usize,
        world: usize,
        is_sharded: bool,
    ) -> Self {
        let mut held = 0;
        let shard = |bucket: &collectives::Bucket| {
            let part = bucket.part(rank, world);
            let own = if is_sharded { part.clone() } else { bucket.range.clone() };
            let pieces = pieces(layout, &own, held);
            let held_range = held..held + own.len();
            held = held_range.end;
            BucketShard { range: bucket.range.clone(), part, own, held: held_range, pieces }
        };
        let buckets = plan.buckets.iter().map(shard).collect();
        Self { buckets, held, len: plan.len, is_sharded }
    }

    /// Returns the reduction of gradients: each rank needs those of the elements that it holds.
    pub(crate) fn reduction(&self) -> Operation {
        if self.is_sharded { Operation::ReduceScatterSum } else { Operation::AllReduceSum }
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

/// Returns the pieces in a range of the flat buffers that is held from `start`.
fn pieces(layout: &Layout, range: &Range<usize>, start: usize) -> Vec<Piece> {
    let whole = Piece { tensor: 0, flat: range.clone(), held: start..start + range.len() };
    let tensors = layout.tensors().iter().enumerate();
    let inside = tensors.filter_map(|(tensor, t)| {
        let piece = whole.within(&t.range)?;
        Some(Piece { tensor, ..piece })
    });
    inside.collect()
}

impl Piece {
    /// Returns the range in its tensor.
    pub(crate) fn elements(&self, tensor: &Tensor) -> Range<usize> {
        self.flat.start - tensor.range.start..self.flat.end - tensor.range.start
    }

    /// Returns its intersection with a range of the flat buffers.
    fn within(&self, range: &Range<usize>) -> Option<Self> {
        let flat = self.flat.start.max(range.start)..self.flat.end.min(range.end);
        let start = self.held.start + flat.start.checked_sub(self.flat.start)?;
        (!flat.is_empty()).then(|| Self {
            tensor: self.tensor,
            held: start..start + flat.len(),
            flat,
        })
    }
}

impl BucketShard {
    /// Returns the range of what this rank holds in the bucket.
    pub(crate) fn own_offsets(&self) -> Range<usize> {
        self.own.start - self.range.start..self.own.end - self.range.start
    }

    /// Returns the range of a piece in the bucket.
    pub(crate) fn offsets(&self, piece: &Piece) -> Range<usize> {
        piece.flat.start - self.range.start..piece.flat.end - self.range.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::step::placed_layout;

    /// Returns for each tensor the number of ranks that have each element.
    fn owners(world: usize, is_sharded: bool, of: impl Fn(&Shard) -> Vec<Piece>) -> Vec<Vec<u8>> {
        let several = ["collectives.bucket_bytes=262144".to_owned()];
        let config = Config::load("smoke", &several).unwrap();
        let (layout, plan) = placed_layout(&config, world);
        assert!(plan.buckets.len() > 1);
        let mut owners: Vec<Vec<u8>> =
            layout.tensors().iter().map(|tensor| vec![0; tensor.range.len()]).collect();
        for rank in 0..world {
            let shard = Shard::new(&layout, &plan, rank, world, is_sharded);
            assert_eq!(shard.held, plan.len / if is_sharded { world } else { 1 });
            for piece in of(&shard) {
                let start = layout.tensors()[piece.tensor].range.start;
                assert_eq!(piece.flat.len(), piece.held.len());
                assert!(piece.held.end <= shard.held);
                assert!(
                    is_sharded || piece.flat == piece.held,
                    "held elements have their flat position"
                );
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
            for is_sharded in [false, true] {
                all(owners(world, is_sharded, |shard| shard.saved().collect()), 1);
            }
            all(owners(world, true, |shard| shard.pieces().cloned().collect()), 1);
            all(owners(world, false, |shard| shard.pieces().cloned().collect()), world as u8);
        }
    }
}
