//! The packed elements of one step along k, from the rows that hold them.

#![allow(unsafe_code)]

use crate::ops::matmul::tile::Strided;
use crate::ops::{Element, simd};

/// Rows that are prefetched before they are read: they are far apart.
const PREFETCHED_ROWS: usize = 16;

/// The rows of one step: two where packed elements are pairs, except behind an odd k.
#[derive(Clone, Copy)]
pub(super) struct StepRows<'a, E> {
    pub(super) first: &'a [E],
    pub(super) second: Option<&'a [E]>,
}

impl<'a, E: Element> StepRows<'a, E> {
    /// # Safety
    /// `source` must be readable over `depth` rows and `width` contiguous columns.
    #[inline(always)]
    pub(super) unsafe fn of<const PAIRS: bool>(
        source: Strided<E>,
        step: usize,
        depth: usize,
        width: usize,
    ) -> Self {
        let row = |index: usize| {
            simd::prefetch(source.at(index + PREFETCHED_ROWS, 0), width);
            // SAFETY: a row of the operand, by the caller's contract.
            unsafe { std::slice::from_raw_parts(source.at(index, 0), width) }
        };
        if PAIRS {
            let second = (2 * step + 1 < depth).then(|| row(2 * step + 1));
            Self { first: row(2 * step), second }
        } else {
            Self { first: row(step), second: None }
        }
    }

    /// Writes the step's packed elements.
    #[inline(always)]
    pub(super) fn pack<const PAIRS: bool>(self, packed: &mut [E::Wide]) {
        match self.second {
            Some(second) => {
                let pairs = self.first.iter().zip(second);
                for (packed, (&first, &second)) in packed.iter_mut().zip(pairs) {
                    *packed = E::pair(first, second);
                }
            }
            None if PAIRS => {
                for (packed, &first) in packed.iter_mut().zip(self.first) {
                    *packed = E::pair(first, E::ZERO);
                }
            }
            None => {
                for (packed, &value) in packed.iter_mut().zip(self.first) {
                    *packed = value.widen();
                }
            }
        }
    }
}
