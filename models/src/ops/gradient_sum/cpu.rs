//! Addition in the host's memory, on the threads of the rayon pool.

use rayon::prelude::*;

use crate::ops::{ELEMENT_CHUNK, simd};

/// Adds each element to its sum.
///
/// # Panics
/// Panics if the lengths differ.
pub fn add(sums: &mut [f32], x: &[f32]) {
    assert_eq!(sums.len(), x.len(), "a sum for each element");
    let x = x.par_chunks(ELEMENT_CHUNK);
    sums.par_chunks_mut(ELEMENT_CHUNK).zip(x).for_each(|(sums, x)| {
        simd::vectorize(
            #[inline(always)]
            || sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x),
        );
    });
}
