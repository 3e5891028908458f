//! Which elements of a buffer are whose.

use std::ops::Range;
use std::sync::Arc;

/// Part boundaries are multiples of this, so that two ranks never write one cache line.
const ALIGN_ELEMENTS: usize = 32;

/// Divides a buffer among the ranks of a node.
#[derive(Debug, Clone)]
pub(crate) enum Parts {
    /// The buffer in as many nearly equal parts as there are ranks.
    Even {
        /// Of the buffer, in elements.
        len: usize,
    },
    /// Local rank i has the `places[i]`-th of equal parts.
    Placed {
        /// One per local rank.
        places: Arc<[usize]>,
        /// Of one part, in elements.
        len: usize,
    },
    /// All of it is one rank's.
    Whole {
        /// Whose.
        owner: usize,
        /// Of the buffer, in elements.
        len: usize,
    },
}

impl Parts {
    /// The part of one of `ranks` local ranks, in elements of the buffer.
    pub(crate) fn of(&self, rank: usize, ranks: usize) -> Range<usize> {
        match self {
            Self::Even { len } => {
                let part = len.div_ceil(ranks).next_multiple_of(ALIGN_ELEMENTS);
                (rank * part).min(*len)..((rank + 1) * part).min(*len)
            }
            Self::Placed { places, len } => places[rank] * len..(places[rank] + 1) * len,
            Self::Whole { owner, len } => 0..if *owner == rank { *len } else { 0 },
        }
    }

    /// Length of the longest part.
    pub(super) fn longest(&self, ranks: usize) -> usize {
        match self {
            Self::Even { .. } => self.of(0, ranks).len(),
            Self::Placed { len, .. } | Self::Whole { len, .. } => *len,
        }
    }

    /// How many parts share a slot.
    pub(super) fn count(&self, ranks: usize) -> usize {
        match self {
            Self::Even { .. } | Self::Placed { .. } => ranks,
            Self::Whole { .. } => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_parts_tile_the_buffer() {
        for ranks in 1..=5 {
            for len in [0, 1, 31, 32, 33, 1000, 4096] {
                let parts = Parts::Even { len };
                let mut end = 0;
                for rank in 0..ranks {
                    let part = parts.of(rank, ranks);
                    assert_eq!(part.start, end, "{len} elements, rank {rank} of {ranks}");
                    assert!(part.len() <= parts.longest(ranks));
                    end = part.end;
                }
                assert_eq!(end, len);
            }
        }
    }

    #[test]
    fn placed_and_whole_parts() {
        let placed = Parts::Placed { places: [2, 0].into(), len: 5 };
        assert_eq!((placed.of(0, 2), placed.of(1, 2)), (10..15, 0..5));
        let whole = Parts::Whole { owner: 1, len: 9 };
        assert_eq!((whole.of(0, 2), whole.of(1, 2)), (0..0, 0..9));
        assert_eq!((placed.count(2), whole.count(2)), (2, 1));
    }
}
