//! Division of a buffer's elements among the members of a group.

use std::ops::Range;
use std::sync::Arc;

/// Boundaries of even parts are multiples of this, so that no two ranks write one cache line.
const ALIGN_ELEMENTS: usize = 32;

/// Divides a buffer among the members of a group.
#[derive(Debug, Clone)]
pub(crate) enum Partition {
    /// One part per member, of nearly equal size.
    Even {
        /// Length of the buffer, in elements.
        len: usize,
    },
    /// Member i owns the `positions[i]`-th of equal parts.
    Placed {
        /// One per member.
        positions: Arc<[usize]>,
        /// Length of one part, in elements.
        len: usize,
    },
    /// One member owns all of it.
    Whole {
        /// The member.
        owner: usize,
        /// Length of the buffer, in elements.
        len: usize,
    },
}

impl Partition {
    /// The part of one of `members` members, in elements of the buffer.
    pub(crate) fn part(&self, member: usize, members: usize) -> Range<usize> {
        match self {
            Self::Even { len } => {
                let part = len.div_ceil(members).next_multiple_of(ALIGN_ELEMENTS);
                (member * part).min(*len)..((member + 1) * part).min(*len)
            }
            Self::Placed { positions, len } => {
                let position = positions[member];
                position * len..(position + 1) * len
            }
            Self::Whole { owner, len } => 0..if *owner == member { *len } else { 0 },
        }
    }

    /// Length of the longest part.
    pub(super) fn longest(&self, members: usize) -> usize {
        match self {
            Self::Even { .. } => self.part(0, members).len(),
            Self::Placed { len, .. } | Self::Whole { len, .. } => *len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_parts_cover_the_buffer_without_gaps() {
        for members in 1..=5 {
            for len in [0, 1, 31, 32, 33, 1000, 4096] {
                let partition = Partition::Even { len };
                let mut end = 0;
                for member in 0..members {
                    let part = partition.part(member, members);
                    assert_eq!(part.start, end, "{len} elements, member {member} of {members}");
                    assert!(part.len() <= partition.longest(members));
                    end = part.end;
                }
                assert_eq!(end, len);
            }
        }
    }

    #[test]
    fn parts_by_position_and_of_one_owner() {
        let placed = Partition::Placed { positions: [2, 0].into(), len: 5 };
        assert_eq!([placed.part(0, 2), placed.part(1, 2)], [10..15, 0..5]);
        let whole = Partition::Whole { owner: 1, len: 9 };
        assert_eq!([whole.part(0, 2), whole.part(1, 2)], [0..0, 0..9]);
    }
}
