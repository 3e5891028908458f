//! Micro-kernels in AVX-512: a tile of up to 6 x 64 sums in registers, for f32 and pairs of bf16.
//!
//! Each step multiplies a column of up to 6 packed elements of A, broadcast one by one, by a row of
//! up to 4 vectors of B: 24 accumulators, 4 vectors and a broadcast take 29 of the 32 registers,
//! and 24 multiplications need 10 loads.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512, __m512bh, _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
};

use crate::ops::matmul::tile::{Kernel, Left, Target, TileShape};

/// The kernel for f32 and for elements that are widened to it, where this processor has it.
pub(super) fn single() -> Option<Kernel<f32>> {
    let is_available = is_x86_feature_detected!("avx512f");
    is_available.then(|| Kernel::broadcasting("avx512f", LANES, VECTORS, ROWS, multiply_single))
}

/// The kernel for pairs of bf16, where this processor has it.
pub(super) fn pairs() -> Option<Kernel<f32>> {
    let is_available =
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
    is_available.then(|| Kernel {
        k_group: 2,
        ..Kernel::broadcasting("avx512bf16", LANES, VECTORS, ROWS, multiply_pairs)
    })
}

/// Rows of a full tile.
const ROWS: usize = 6;
/// Vectors along a row of a full tile.
const VECTORS: usize = 4;
/// Elements of a vector.
const LANES: usize = 16;

/// sums + left * right, rounded once.
#[target_feature(enable = "avx512f")]
#[inline]
fn add_single(sums: __m512, left: __m512, right: __m512) -> __m512 {
    _mm512_fmadd_ps(left, right, sums)
}

/// sums + the second products + the first products; subnormal numbers count as 0.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn add_pairs(sums: __m512, left: __m512, right: __m512) -> __m512 {
    // SAFETY: both types are 64 bytes without invalid values.
    let pairs = |vector: __m512| unsafe { std::mem::transmute::<__m512, __m512bh>(vector) };
    _mm512_dpbf16_ps(sums, pairs(left), pairs(right))
}

macro_rules! micro_kernel {
    ($name:ident, $features:literal, $tile:ident, $add_products:ident) => {
        /// # Safety
        /// See [`Kernel::multiply`]; the processor must have the features.
        unsafe fn $name(target: Target<f32>, shape: TileShape, left: Left<f32>, right: *const f32) {
            type Tile = unsafe fn(Target<f32>, usize, Left<f32>, *const f32);
            /// By the number of rows and of vectors, both less one.
            static TILES: [[Tile; VECTORS]; ROWS] = [
                [$tile::<1, 1>, $tile::<1, 2>, $tile::<1, 3>, $tile::<1, 4>],
                [$tile::<2, 1>, $tile::<2, 2>, $tile::<2, 3>, $tile::<2, 4>],
                [$tile::<3, 1>, $tile::<3, 2>, $tile::<3, 3>, $tile::<3, 4>],
                [$tile::<4, 1>, $tile::<4, 2>, $tile::<4, 3>, $tile::<4, 4>],
                [$tile::<5, 1>, $tile::<5, 2>, $tile::<5, 3>, $tile::<5, 4>],
                [$tile::<6, 1>, $tile::<6, 2>, $tile::<6, 3>, $tile::<6, 4>],
            ];
            // SAFETY: as this function.
            unsafe { TILES[shape.rows - 1][shape.vectors - 1](target, shape.steps, left, right) }
        }

        /// # Safety
        /// See the micro-kernel, for this shape.
        #[target_feature(enable = $features)]
        unsafe fn $tile<const ROWS: usize, const VECTORS: usize>(
            target: Target<f32>,
            steps: usize,
            left: Left<f32>,
            mut right: *const f32,
        ) {
            let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
            let mut column = left.start.cast::<u8>();
            let target_of = |row: usize, vector: usize| {
                target.start.wrapping_add(row * target.row_stride + LANES * vector)
            };
            for row in 0..ROWS {
                for vector in 0..VECTORS {
                    _mm_prefetch::<_MM_HINT_T0>(target_of(row, vector).cast());
                }
            }
            for _ in 0..steps {
                let mut vectors = [_mm512_setzero_ps(); VECTORS];
                for (vector, value) in vectors.iter_mut().enumerate() {
                    // SAFETY: a vector of this step's row of the panel, by the caller's contract.
                    *value = unsafe { _mm512_loadu_ps(right.add(LANES * vector)) };
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let element = column.wrapping_add(row * left.row_bytes).cast::<f32>();
                    // SAFETY: an element of this step's column, by the caller's contract.
                    let element = _mm512_set1_ps(unsafe { element.read_unaligned() });
                    for (sum, &value) in sums.iter_mut().zip(&vectors) {
                        *sum = $add_products(*sum, element, value);
                    }
                }
                right = right.wrapping_add(LANES * VECTORS);
                column = column.wrapping_add(left.step_bytes);
            }
            for (row, sums) in sums.into_iter().enumerate() {
                for (vector, mut sum) in sums.into_iter().enumerate() {
                    let to = target_of(row, vector);
                    // SAFETY: a vector of the target, by the caller's contract.
                    unsafe {
                        if target.accumulate {
                            sum = _mm512_add_ps(_mm512_loadu_ps(to), sum);
                        }
                        _mm512_storeu_ps(to, sum);
                    }
                }
            }
        }
    };
}

micro_kernel!(multiply_single, "avx512f", single_tile, add_single);
micro_kernel!(multiply_pairs, "avx512f,avx512bf16", pairs_tile, add_pairs);
