//! What of the flat buffers is this rank's own.
//!
//! Rank r owns the r-th part of every bucket: it adds up its squares for the norm, and saves it.
//! Under a sharded optimizer it holds moments (and master weights beside working weights) of no
//! other elements; else it holds those of all.

use std::ops::Range;

use collectives::{BucketPlan, Operation};
use models::Layout;

/// The own parts of one rank.
#[derive(Debug)]
pub(crate) struct Shard {
    /// By bucket.
    pub(crate) places: Vec<Place>,
    /// Elements held.
    pub(crate) held: usize,
    /// Elements of the flat buffers.
    pub(crate) len: usize,
    /// Whether other ranks hold other elements.
    pub(crate) is_sharded: bool,
}

/// One bucket. Ranges are of the flat buffers.
#[derive(Debug)]
pub(crate) struct Place {
    /// All of it.
    pub(crate) bucket: Range<usize>,
    /// This rank's part.
    pub(crate) part: Range<usize>,
    /// What of its tensors this rank holds.
    pub(crate) pieces: Vec<Piece>,
}

/// Elements of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Which of [`Layout::tensors`].
    pub(crate) tensor: usize,
    /// Place in the flat buffers.
    pub(crate) flat: Range<usize>,
    /// Place in the buffers of what is held.
    pub(crate) held: Range<usize>,
}

impl Shard {
    /// Of `rank` of `world`.
    pub(crate) fn new(
        (layout, plan): (&Layout, &BucketPlan),
        (rank, world): (usize, usize),
        is_sharded: bool,
    ) -> Self {
        let mut held = 0;
        let place = |bucket: &collectives::Bucket| {
            let part = bucket.part(rank, world);
            let own = if is_sharded { part.clone() } else { bucket.range.clone() };
            let pieces = pieces(layout, &own, held);
            held += own.len();
            Place { bucket: bucket.range.clone(), part, pieces }
        };
        let places = plan.buckets.iter().map(place).collect();
        Self { places, held, len: plan.len, is_sharded }
    }

    /// How gradients come together: each rank needs those of what it holds.
    pub(crate) fn reduction(&self) -> Operation {
        if self.is_sharded { Operation::ReduceScatterSum } else { Operation::AllReduceSum }
    }

    /// Elements of tensors that this rank updates.
    pub(crate) fn elements(&self) -> usize {
        self.pieces().map(|piece| piece.flat.len()).sum()
    }

    /// Elements of this rank's parts, padding included, whether or not it holds more.
    pub(crate) fn part_elements(&self) -> usize {
        self.places.iter().map(|place| place.part.len()).sum()
    }

    /// All that is held, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.places.iter().flat_map(|place| &place.pieces)
    }

    /// What this rank saves: its parts, whether or not it holds more.
    pub(crate) fn saved(&self) -> impl Iterator<Item = Piece> {
        let inside = |place: &'_ Place| {
            let part = place.part.clone();
            place.pieces.clone().into_iter().filter_map(move |piece| piece.within(&part))
        };
        self.places.iter().flat_map(inside)
    }
}

/// The tensors in a range of the flat buffers that is held from `start`.
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
    /// What of it lies in a range of the flat buffers.
    fn within(&self, range: &Range<usize>) -> Option<Self> {
        let flat = self.flat.start.max(range.start)..self.flat.end.min(range.end);
        let start = self.held.start + flat.start.checked_sub(self.flat.start)?;
        (!flat.is_empty()).then(|| Self {
            tensor: self.tensor,
            held: start..start + flat.len(),
            flat,
        })
    }

    /// Its place in a bucket.
    pub(crate) fn in_bucket(&self, place: &Place) -> Range<usize> {
        self.flat.start - place.bucket.start..self.flat.end - place.bucket.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assemble::placed_layout;
    use crate::config::Config;

    /// By tensor: how many ranks have each element.
    fn owners(world: usize, is_sharded: bool, of: impl Fn(&Shard) -> Vec<Piece>) -> Vec<Vec<u8>> {
        let several = ["collectives.bucket_bytes=262144".to_owned()];
        let config = Config::load("smoke", &several).unwrap();
        let (layout, plan) = placed_layout(&config, world);
        assert!(plan.buckets.len() > 1);
        let mut owners: Vec<Vec<u8>> =
            layout.tensors().iter().map(|tensor| vec![0; tensor.range.len()]).collect();
        for rank in 0..world {
            let shard = Shard::new((&layout, &plan), (rank, world), is_sharded);
            assert_eq!(shard.held, plan.len / if is_sharded { world } else { 1 });
            for piece in of(&shard) {
                let start = layout.tensors()[piece.tensor].range.start;
                assert_eq!(piece.flat.len(), piece.held.len());
                assert!(piece.held.end <= shard.held);
                assert!(is_sharded || piece.flat == piece.held, "all is held in its place");
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
