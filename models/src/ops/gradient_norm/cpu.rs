//! Sums over leaves of a fixed size.

use super::{ElementSums, WEIGHT_SCALE, weight_bits};
use crate::ops::{ELEMENT_CHUNK, Element, Float, simd};

/// Independent partial sums of a leaf: two AVX-512 registers of f64.
const LANES: usize = 16;

/// Sums over elements whose first has this position; not finite exactly when an element is not.
pub fn sums<E: Element>(x: &[E], first: usize) -> ElementSums {
    if x.len() <= ELEMENT_CHUNK {
        return leaf(x, first);
    }
    let leaves = x.len().div_ceil(ELEMENT_CHUNK);
    let middle = leaves.div_ceil(2) * ELEMENT_CHUNK;
    let (left, right) = x.split_at(middle);
    let (left, right) = rayon::join(|| sums(left, first), || sums(right, first + middle));
    ElementSums { weighted: left.weighted + right.weighted, squares: left.squares + right.squares }
}

fn leaf<E: Element>(x: &[E], first: usize) -> ElementSums {
    simd::vectorize(
        #[inline(always)]
        || {
            let mut weighted = [0.0; LANES];
            let mut squares = [0.0; LANES];
            let mut add = |lane: usize, position: u32, element: E| {
                let value = element.widen().to_f64();
                weighted[lane] += f64::from(weight_bits(position)) * value;
                squares[lane] += value * value;
            };
            let (chunks, rest) = x.as_chunks::<LANES>();
            let mut position = first as u32;
            for chunk in chunks {
                simd::prefetch_ahead(chunk);
                for (lane, &element) in chunk.iter().enumerate() {
                    add(lane, position.wrapping_add(lane as u32), element);
                }
                position = position.wrapping_add(LANES as u32);
            }
            for (lane, &element) in rest.iter().enumerate() {
                add(lane, position.wrapping_add(lane as u32), element);
            }
            ElementSums {
                weighted: simd::sum(&weighted) * WEIGHT_SCALE,
                squares: simd::sum(&squares),
            }
        },
    )
}

/// The index of the first element that is infinite or not a number.
///
/// For the error message; [`sums`] finds out for free whether there is one.
pub fn first_non_finite(x: &[f32]) -> Option<usize> {
    x.iter().position(|value| !value.is_finite())
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::{first_non_finite, sums};
    use crate::ops::gradient_norm::{ElementSums, weight_bits};
    use crate::ops::testing::{on_threads, uniform};

    /// Bits that two equal sums share.
    fn bits(sums: ElementSums) -> [u64; 2] {
        [sums.weighted.to_bits(), sums.squares.to_bits()]
    }

    #[test]
    fn equal_plain_sums_and_are_the_same_on_any_pool() {
        for len in [0, 1, 17, 16_384, 16_385, 100_003] {
            let x: Vec<f32> = uniform(len, 3);
            let first = 77;
            let squares: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
            let weight = |at: usize| f64::from(weight_bits((first + at) as u32)) / 1024.0;
            let weighted: f64 =
                x.iter().enumerate().map(|(at, &v)| weight(at) * f64::from(v)).sum();
            let one = on_threads(1, || sums(&x, first));
            assert!((one.squares - squares).abs() <= 1e-12 * squares, "{one:?} {squares}");
            assert!((one.weighted - weighted).abs() <= 1e-12 * squares, "{one:?} {weighted}");
            for threads in [2, 3] {
                assert_eq!(bits(on_threads(threads, || sums(&x, first))), bits(one));
            }
        }
    }

    #[test]
    fn parts_add_up_to_the_sums_of_all_in_either_format() {
        let x: Vec<f32> = uniform(70_001, 4);
        let narrow: Vec<bf16> = x.iter().map(|&v| bf16::from_f32(v)).collect();
        let wide: Vec<f32> = narrow.iter().map(|v| v.to_f32()).collect();
        assert_eq!(bits(sums(&narrow, 5)), bits(sums(&wide, 5)));
        let (left, right) = x.split_at(30_016);
        let all = sums(&x, 5);
        let parts = [sums(left, 5), sums(right, 5 + 30_016)];
        let added = parts[0].weighted + parts[1].weighted;
        assert!((added - all.weighted).abs() <= 1e-12 * all.squares, "{parts:?} {all:?}");
    }

    /// Neither a flip of a bit that leaves the square as it is, nor an exchange of two elements.
    #[test]
    fn changes_that_leave_the_squares_alone_show() {
        let x: Vec<f32> = uniform(50_000, 5);
        let right = sums(&x, 0);
        let mut negated = x.clone();
        negated[31_234] = -negated[31_234];
        assert_ne!(sums(&negated, 0).weighted.to_bits(), right.weighted.to_bits());
        for distance in [1, 2, 16, 64, 1024, 16_384] {
            let mut swapped = x.clone();
            swapped.swap(20_000, 20_000 + distance);
            let found = sums(&swapped, 0);
            assert_ne!(found.weighted.to_bits(), right.weighted.to_bits(), "{distance}");
        }
    }

    #[test]
    fn every_non_finite_element_shows() {
        for (at, bad) in [(0, f32::NAN), (40_000, f32::INFINITY), (49_999, f32::NEG_INFINITY)] {
            let mut x = vec![f32::MAX; 50_000];
            assert!(sums(&x, 0).squares.is_finite() && sums(&x, 0).weighted.is_finite());
            x[at] = bad;
            assert!(!sums(&x, 0).squares.is_finite());
            assert_eq!(first_non_finite(&x), Some(at));
        }
    }
}
