//! Transposed blocks of 16 x 16 packed elements: in AVX-512 four rounds of 16 shuffles.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m512, _mm512_castpd_ps, _mm512_castps_pd, _mm512_loadu_ps, _mm512_setzero_ps,
    _mm512_shuffle_f32x4, _mm512_storeu_ps, _mm512_unpackhi_pd, _mm512_unpackhi_ps,
    _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};

use crate::ops::Float;

/// Rows and columns of a block.
pub(in crate::ops) const SIDE: usize = 16;

/// Writes the columns of a block, whose rows are `from_row_bytes` apart, as rows `to_row_stride`
/// elements apart.
///
/// # Safety
/// Both blocks must be accessible, the target as nobody else's; neither need be aligned.
#[inline(always)]
pub(in crate::ops) unsafe fn transpose_block<W: Float>(
    from: *const W,
    from_row_bytes: usize,
    to: *mut W,
    to_row_stride: usize,
) {
    #[cfg(target_arch = "x86_64")]
    if size_of::<W>() == size_of::<f32>() && is_x86_feature_detected!("avx512f") {
        // SAFETY: as this function; the feature was detected, and bits are copied as they are.
        unsafe { transpose_avx512(from.cast(), from_row_bytes, to.cast(), to_row_stride) };
        return;
    }
    let mut rows = [[W::ZERO; SIDE]; SIDE];
    for (index, row) in rows.iter_mut().enumerate() {
        let from = from.wrapping_byte_add(index * from_row_bytes).cast::<[W; SIDE]>();
        // SAFETY: a row of the block, by the caller's contract.
        *row = unsafe { from.read_unaligned() };
    }
    for column in 0..SIDE {
        let to = to.wrapping_add(column * to_row_stride).cast::<[W; SIDE]>();
        // SAFETY: as above.
        unsafe { to.write_unaligned(rows.map(|row| row[column])) };
    }
}

/// # Safety
/// See [`transpose_block`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn transpose_avx512(
    from: *const f32,
    from_row_bytes: usize,
    to: *mut f32,
    to_row_stride: usize,
) {
    let mut rows = [_mm512_setzero_ps(); SIDE];
    for (index, row) in rows.iter_mut().enumerate() {
        // SAFETY: a row of the block, by the caller's contract.
        *row = unsafe { _mm512_loadu_ps(from.wrapping_byte_add(index * from_row_bytes)) };
    }
    for (index, column) in transposed(rows).into_iter().enumerate() {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to.wrapping_add(index * to_row_stride), column) };
    }
}

/// Interleaves elements of neighbouring rows, then pairs of them, then fours, then eights.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
fn transposed(rows: [__m512; SIDE]) -> [__m512; SIDE] {
    let mut pairs = rows;
    let mut fours = rows;
    let mut eights = rows;
    let mut columns = rows;
    for i in 0..SIDE / 2 {
        pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    for i in 0..SIDE / 4 {
        for half in 0..2 {
            let first = _mm512_castps_pd(pairs[4 * i + half]);
            let second = _mm512_castps_pd(pairs[4 * i + 2 + half]);
            fours[4 * i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(first, second));
            fours[4 * i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(first, second));
        }
    }
    // Now row 4 i + j has columns j, 4 + j, 8 + j and 12 + j of rows 4 i to 4 i + 3.
    for i in 0..2 {
        for j in 0..4 {
            let first = fours[8 * i + j];
            let second = fours[8 * i + 4 + j];
            eights[8 * i + j] = _mm512_shuffle_f32x4::<0b10_00_10_00>(first, second);
            eights[8 * i + 4 + j] = _mm512_shuffle_f32x4::<0b11_01_11_01>(first, second);
        }
    }
    // Row j has columns j and 8 + j of rows 0 to 7 (two, then two); row 4 + j those 4 further.
    for j in 0..8 {
        let first = eights[j];
        let second = eights[8 + j];
        columns[j] = _mm512_shuffle_f32x4::<0b10_00_10_00>(first, second);
        columns[8 + j] = _mm512_shuffle_f32x4::<0b11_01_11_01>(first, second);
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::{SIDE, transpose_block};
    use crate::ops::Float;

    fn is_transposed<W: Float>(element: impl Fn(usize) -> W) {
        let from_stride = SIDE + 3;
        let to_stride = SIDE + 5;
        let from: Vec<W> = (0..SIDE * from_stride).map(element).collect();
        let mut to = vec![W::ZERO; SIDE * to_stride];
        let from_bytes = from_stride * size_of::<W>();
        // SAFETY: both have whole blocks.
        unsafe { transpose_block(from.as_ptr(), from_bytes, to.as_mut_ptr(), to_stride) };
        for row in 0..SIDE {
            for column in 0..SIDE {
                assert!(to[column * to_stride + row] == from[row * from_stride + column]);
            }
            assert!(to[row * to_stride + SIDE..][..5].iter().all(|&beyond| beyond == W::ZERO));
        }
    }

    /// f32 in vectors where the processor has them, f64 never.
    #[test]
    fn columns_become_rows() {
        is_transposed(|index| index as f32 + 1.0);
        is_transposed(|index| index as f64 + 1.0);
    }
}
