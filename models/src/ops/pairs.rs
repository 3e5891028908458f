//! Pairs of bf16 in AVX-512: what compilers make of portable code takes three times as many
//! instructions.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512i, _mm512_loadu_epi16, _mm512_permutex2var_epi16, _mm512_storeu_epi16,
};

use half::bf16;

/// bf16 in a vector.
const HALVES: usize = 32;

/// Writes cells of two elements each, as many as fill whole vectors, and returns their number: 0
/// where this processor cannot.
///
/// # Panics
/// When the lengths differ.
#[inline(always)]
pub(super) fn fill(first: &[bf16], second: &[bf16], cells: &mut [f32]) -> usize {
    if !is_x86_feature_detected!("avx512bw") {
        return 0;
    }
    // SAFETY: the feature was detected; AVX-512F is a part of it.
    unsafe { fill_vectors(first, second, cells) }
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn fill_vectors(first: &[bf16], second: &[bf16], cells: &mut [f32]) -> usize {
    assert!(first.len() == cells.len() && second.len() == cells.len());
    let (low, high) = (interleave(0), interleave(HALVES as i16 / 2));
    let whole = cells.len() / HALVES * HALVES;
    for start in (0..whole).step_by(HALVES) {
        // SAFETY: a whole vector of both operands, and two of cells.
        unsafe {
            let first = _mm512_loadu_epi16(first.as_ptr().add(start).cast());
            let second = _mm512_loadu_epi16(second.as_ptr().add(start).cast());
            let to = cells.as_mut_ptr().add(start).cast::<i16>();
            _mm512_storeu_epi16(to, _mm512_permutex2var_epi16(first, low, second));
            let high = _mm512_permutex2var_epi16(first, high, second);
            _mm512_storeu_epi16(to.add(HALVES), high);
        }
    }
    whole
}

/// Takes one element of each of two vectors in turn, from `start` on.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn interleave(start: i16) -> __m512i {
    let mut lanes = [0_i16; HALVES];
    for (lane, index) in lanes.iter_mut().zip(0_i16..) {
        *lane = start + index / 2 + index % 2 * HALVES as i16;
    }
    // SAFETY: a vector is as long.
    unsafe { _mm512_loadu_epi16(lanes.as_ptr()) }
}
