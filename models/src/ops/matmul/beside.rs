//! What is done beside products, for those that come next.

#![allow(unsafe_code)]

use std::ptr;

use super::amx::SIDE;
use super::product::TILE;
use super::stepwise::Packing;
use crate::ops::simd;

/// Sums that a step asks for: in 16 steps those of a tile.
const SUMS: usize = TILE / SIDE;

/// Packs a strip of the left operand and a share of a block of the right one, and asks for sums.
#[derive(Debug)]
pub(super) struct Beside {
    left: Packing,
    right: Packing,
    /// The row of memory at which the share ends.
    right_end: usize,
    is_turn_of_left: bool,
    /// Sums that will be needed, none where this is null.
    sums: *const f32,
}

impl Beside {
    /// A block of the right operand, with no share of it yet.
    pub(super) fn of_right(right: Packing) -> Self {
        Self {
            left: Packing::none(),
            right,
            right_end: 0,
            is_turn_of_left: false,
            sums: ptr::null(),
        }
    }

    /// A strip of the left operand, and the first of so many even shares of what is left of the
    /// right one.
    pub(super) fn next_strip(&mut self, left: Packing, shares: usize) {
        let (rows, row) = self.right.rows();
        let share = (rows - row).div_ceil(shares);
        self.left = left;
        self.right_end = row + share;
        // Behind the last share the operand goes on elsewhere.
        self.right.ask_ahead((shares > 1).then_some(share));
    }

    /// These sums are multiplied; the next tile's lie behind them.
    pub(super) fn next_sums(&mut self, here: *const f32) {
        self.sums = here.wrapping_add(TILE);
    }

    /// A step of one of both in turn, or of the one that has some left. Nothing of it may use the
    /// registers of tiles.
    ///
    /// # Safety
    /// As [`Packing::step`] of both.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn step(&mut self) {
        if !self.sums.is_null() {
            simd::prefetch(self.sums, SUMS);
            self.sums = self.sums.wrapping_add(SUMS);
        }
        self.is_turn_of_left ^= true;
        let (rows, row) = self.left.rows();
        let is_right_left = self.right.rows().1 < self.right_end;
        // SAFETY: as this function.
        unsafe {
            if row < rows && (self.is_turn_of_left || !is_right_left) {
                self.left.step();
            } else if is_right_left {
                self.right.step();
            }
        }
    }

    /// All steps that are left of the strip and of the share.
    ///
    /// # Safety
    /// As [`Self::step`].
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn finish(&mut self) {
        // SAFETY: as this function.
        unsafe {
            self.left.run_to(self.left.rows().0);
            self.right.run_to(self.right_end);
        }
    }
}
