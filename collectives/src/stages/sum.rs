//! Sums of several ranks' elements, always in the order of the ranks.
#![allow(unsafe_code)]

use std::ops::AddAssign;
use std::slice;

use half::bf16;

use crate::core::dtype::{Dtype, Element};

/// Elements summed at a time: few enough to stay in the first-level cache.
const TILE: usize = 1024;

/// An element type that is summed.
trait Addend: Element {
    /// Type of sums, rounded to the element type once.
    type Sum: Copy + Default + AddAssign + From<Self>;

    fn rounded(sum: Self::Sum) -> Self;
}

impl Addend for bf16 {
    type Sum = f32;

    fn rounded(sum: f32) -> Self {
        Self::from_f32(sum)
    }
}

impl Addend for f32 {
    type Sum = Self;

    fn rounded(sum: Self) -> Self {
        sum
    }
}

impl Addend for f64 {
    type Sum = Self;

    fn rounded(sum: Self) -> Self {
        sum
    }
}

/// Adds `len` elements of each of `addends` in their order, and writes the sums to every one of
/// `destinations`, which may be addends too.
///
/// # Safety
/// All pointers are valid for `len` elements of this type and aligned to it, and nobody else
/// accesses these elements meanwhile.
///
/// # Panics
/// Panics if `Operation::validate` refuses to sum the type, or if there are no addends.
pub(crate) unsafe fn sum_in_order(
    dtype: Dtype,
    len: usize,
    addends: impl Iterator<Item = *const u8> + Clone,
    destinations: impl Iterator<Item = *mut u8> + Clone,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            Dtype::Bf16 => sum_as::<bf16>(len, addends, destinations),
            Dtype::F32 => sum_as::<f32>(len, addends, destinations),
            Dtype::F64 => sum_as::<f64>(len, addends, destinations),
            Dtype::U8 => unreachable!("refused by Operation::validate"),
        }
    }
}

unsafe fn sum_as<E: Addend>(
    len: usize,
    addends: impl Iterator<Item = *const u8> + Clone,
    destinations: impl Iterator<Item = *mut u8> + Clone,
) {
    let mut sums = [E::Sum::default(); TILE];
    for start in (0..len).step_by(TILE) {
        let tile_len = TILE.min(len - start);
        let sums = &mut sums[..tile_len];
        // SAFETY: the caller's promise.
        let tile_of = |addend: *const u8| unsafe {
            slice::from_raw_parts(addend.cast::<E>().add(start), tile_len)
        };
        let mut tiles = addends.clone().map(tile_of);
        let first = tiles.next().unwrap_or_else(|| unreachable!("a sum of no addends"));
        sums.iter_mut().zip(first).for_each(|(sum, addend)| *sum = E::Sum::from(*addend));
        for tile in tiles {
            sums.iter_mut().zip(tile).for_each(|(sum, addend)| *sum += E::Sum::from(*addend));
        }
        for destination in destinations.clone() {
            // SAFETY: the caller's promise; no slice of an addend is used any more.
            let destination =
                unsafe { slice::from_raw_parts_mut(destination.cast::<E>().add(start), tile_len) };
            let sums = sums.iter().map(|sum| E::rounded(*sum));
            destination.iter_mut().zip(sums).for_each(|(element, sum)| *element = sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 256 + 1 is 256 in bf16: rounded after each addition, ones would be lost.
    #[test]
    fn sums_in_bf16_are_rounded_once() {
        let mut all = [256.0, 1.0, 1.0, 1.0, 1.0].map(|addend| vec![bf16::from_f32(addend); 3]);
        let sums: *mut u8 = all[0].as_mut_ptr().cast();
        let addends = all.iter().map(|numbers| numbers.as_ptr().cast::<u8>());
        // SAFETY: vectors of that many elements, which nothing else uses meanwhile.
        unsafe { sum_in_order(Dtype::Bf16, 3, addends, std::iter::once(sums)) };
        assert_eq!(all[0], [bf16::from_f32(260.0); 3]);
    }

    /// Numbers whose sum depends on the order.
    fn number(rank: usize, index: usize) -> f32 {
        let mixed = (index * 7919 + rank * 104_729) % 1009;
        mixed as f32 * 10f32.powi((mixed % 9) as i32 - 4) - 0.3
    }

    #[test]
    fn sums_have_the_order_of_the_ranks_and_may_replace_addends() {
        for (ranks, len) in [(1, 10), (2, 5000), (3, TILE), (5, 2 * TILE + 1), (4, 0)] {
            let mut all: Vec<Vec<f32>> = (0..ranks)
                .map(|rank| (0..len).map(|index| number(rank, index)).collect())
                .collect();
            let expected: Vec<u32> = (0..len)
                .map(|index| {
                    let first = all[0][index];
                    (1..ranks).fold(first, |sum, rank| sum + all[rank][index]).to_bits()
                })
                .collect();
            let mut other = vec![0f32; len];
            let last: *mut u8 = all[ranks - 1].as_mut_ptr().cast();
            let destinations = [last, other.as_mut_ptr().cast()];
            let addends = all.iter().map(|numbers| numbers.as_ptr().cast::<u8>());
            // SAFETY: vectors of that many elements, which nothing else uses meanwhile.
            unsafe { sum_in_order(Dtype::F32, len, addends, destinations.into_iter()) };
            let bits = |sums: &[f32]| sums.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>();
            assert!(bits(&all[ranks - 1]) == expected, "{ranks} ranks, {len} elements");
            assert!(bits(&other) == expected, "{ranks} ranks, {len} elements, a copy");
        }
    }
}
