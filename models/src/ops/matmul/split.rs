//! f32 in cells for products of bf16: three parts of 8 bits each, which add up to the element.
//!
//! A product of two elements is then the sum of six products of parts, each exact in f32. The three
//! that are left out are together below 2^-23 of it, and on average nothing: less than sums in f32
//! round. 16 cells of the first parts along k are followed by those of the second and the third
//! parts, then come the next 16; behind the end of k are zeros.
//!
//! Parts and products of parts that would be subnormal (below 1.2e-38) count as 0: the last bits of
//! elements below 1e-31, and of products below 1e-31. A sum with an infinite element, or one that
//! rounds to no finite bf16 (from 3.396e38 on), is not a number.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_or_si512, _mm512_permutex2var_epi16, _mm512_set1_epi32, _mm512_srli_epi32,
    _mm512_sub_ps,
};

use super::transpose::SIDE;

/// Parts of an element.
pub(super) const PARTS: usize = 3;
/// Elements and cells in a vector.
pub(super) const LANES: usize = SIDE;
/// Elements along k of 16 cells, two in each.
pub(super) const RUN: usize = 2 * SIDE;

/// Whether this processor has the instructions that parts are made with.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
}

/// A vector of cells of each part.
pub(super) type Cells = [__m512i; PARTS];

/// Cells of two vectors of elements, each of one element of both: k across them.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn pairs_of_both(first: __m512i, second: __m512i) -> Cells {
    let (mut cells, upper) = (split(first), split(second));
    for (cells, upper) in cells.iter_mut().zip(upper) {
        // The lower half of a part is zero, unless it is of NaN: then so are the sums.
        *cells = _mm512_or_si512(_mm512_srli_epi32::<16>(*cells), upper);
    }
    cells
}

/// Cells of two vectors of elements, each of two neighbours: k along them.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) fn pairs_of_neighbours(first: __m512i, second: __m512i) -> Cells {
    let upper = upper_halves();
    let (mut cells, second) = (split(first), split(second));
    for (cells, second) in cells.iter_mut().zip(second) {
        *cells = _mm512_permutex2var_epi16(*cells, upper, second);
    }
    cells
}

/// Parts in the upper halves of each lane, over zeros: the nearest bf16, that of what is left, and
/// the rest, which has 8 bits. One part of NaN is NaN.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn split(values: __m512i) -> [__m512i; PARTS] {
    let round = |values| {
        let half = _mm512_add_epi32(values, _mm512_set1_epi32(0x8000));
        _mm512_and_si512(half, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()))
    };
    let less = |values, part| {
        let difference = _mm512_sub_ps(_mm512_castsi512_ps(values), _mm512_castsi512_ps(part));
        _mm512_castps_si512(difference)
    };
    let first = round(values);
    let rest = less(values, first);
    let second = round(rest);
    [first, second, less(rest, second)]
}

/// Indices of the upper halves of two vectors' lanes.
#[target_feature(enable = "avx512f")]
#[inline]
fn upper_halves() -> __m512i {
    let mut indices = [0_i16; RUN];
    for (index, half) in indices.iter_mut().zip(0..) {
        *index = 2 * half + 1;
    }
    // SAFETY: a vector is as long and has no invalid values.
    unsafe { std::mem::transmute(indices) }
}
