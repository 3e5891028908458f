//! Micro-kernels in AVX-512: a tile of up to 6 x 64 sums in registers, for f32 and pairs of bf16.
//!
//! Each step multiplies a column of up to 6 cells of the left operand, broadcast one by one, with a
//! row of up to 4 vectors of the right one: 24 sums, 4 vectors and a broadcast fill 29 of the 32
//! registers, and 24 multiplications wait for 10 loads.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512, __m512bh, _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
};

use super::kernel::{Left, Target, Tile};

/// Rows of a full tile.
pub(super) const ROWS: usize = 6;
/// Vectors of a row of a full tile.
pub(super) const VECTORS: usize = 4;
/// Sums in a vector.
pub(super) const LANES: usize = 16;

/// sums + left * right, rounded once.
#[target_feature(enable = "avx512f")]
#[inline]
fn multiply_single(sums: __m512, left: __m512, right: __m512) -> __m512 {
    _mm512_fmadd_ps(left, right, sums)
}

/// sums + the second products + the first products; subnormal numbers are taken as 0.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn multiply_pairs(sums: __m512, left: __m512, right: __m512) -> __m512 {
    // SAFETY: both types are 64 bytes without invalid values.
    let pairs = |cells: __m512| unsafe { std::mem::transmute::<__m512, __m512bh>(cells) };
    _mm512_dpbf16_ps(sums, pairs(left), pairs(right))
}

macro_rules! micro_kernel {
    ($tile:ident, $table:ident, $features:literal, $multiply:ident) => {
        /// # Safety
        /// As [`super::kernel::Kernel::multiply`], and the processor must have the features.
        #[target_feature(enable = $features)]
        unsafe fn $tile<const ROWS: usize, const VECTORS: usize>(
            target: Target<f32>,
            depth: usize,
            left: Left<f32>,
            mut right: *const f32,
        ) {
            let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
            let mut column = left.start.cast::<u8>();
            for index in 0..ROWS {
                for vector in 0..VECTORS {
                    let place = target.start.wrapping_add(index * target.row + LANES * vector);
                    _mm_prefetch::<_MM_HINT_T0>(place.cast());
                }
            }
            for _ in 0..depth {
                let mut row = [_mm512_setzero_ps(); VECTORS];
                for (vector, value) in row.iter_mut().enumerate() {
                    // SAFETY: a vector of this step's row of the panel, by the caller's contract.
                    *value = unsafe { _mm512_loadu_ps(right.add(LANES * vector)) };
                }
                for (index, sums) in sums.iter_mut().enumerate() {
                    let cell = column.wrapping_add(index * left.row_bytes).cast::<f32>();
                    // SAFETY: a cell of this step's column, by the caller's contract.
                    let cell = _mm512_set1_ps(unsafe { cell.read_unaligned() });
                    for (sum, &value) in sums.iter_mut().zip(&row) {
                        *sum = $multiply(*sum, cell, value);
                    }
                }
                right = right.wrapping_add(LANES * VECTORS);
                column = column.wrapping_add(left.step_bytes);
            }
            for (index, sums) in sums.into_iter().enumerate() {
                for (vector, mut sum) in sums.into_iter().enumerate() {
                    let place = target.start.wrapping_add(index * target.row + LANES * vector);
                    // SAFETY: a vector of the target, by the caller's contract.
                    unsafe {
                        if target.accumulate {
                            sum = _mm512_add_ps(_mm512_loadu_ps(place), sum);
                        }
                        _mm512_storeu_ps(place, sum);
                    }
                }
            }
        }

        /// By the number of rows and of vectors, both less one.
        pub(super) static $table: [[Tile<f32>; VECTORS]; ROWS] = [
            [$tile::<1, 1>, $tile::<1, 2>, $tile::<1, 3>, $tile::<1, 4>],
            [$tile::<2, 1>, $tile::<2, 2>, $tile::<2, 3>, $tile::<2, 4>],
            [$tile::<3, 1>, $tile::<3, 2>, $tile::<3, 3>, $tile::<3, 4>],
            [$tile::<4, 1>, $tile::<4, 2>, $tile::<4, 3>, $tile::<4, 4>],
            [$tile::<5, 1>, $tile::<5, 2>, $tile::<5, 3>, $tile::<5, 4>],
            [$tile::<6, 1>, $tile::<6, 2>, $tile::<6, 3>, $tile::<6, 4>],
        ];
    };
}

micro_kernel!(single_tile, SINGLE, "avx512f", multiply_single);
micro_kernel!(pairs_tile, PAIRS, "avx512f,avx512bf16", multiply_pairs);
