//! Sums of squares over leaves of a fixed size.

use crate::ops::{ELEMENT_CHUNK, simd};

/// Independent partial sums of a leaf: two AVX-512 registers of f64.
const LANES: usize = 16;

/// The sum of the squares of all elements; not finite exactly when an element is not.
pub fn sum_of_squares(x: &[f32]) -> f64 {
    if x.len() <= ELEMENT_CHUNK {
        return leaf(x);
    }
    let leaves = x.len().div_ceil(ELEMENT_CHUNK);
    let (left, right) = x.split_at(leaves.div_ceil(2) * ELEMENT_CHUNK);
    let (left, right) = rayon::join(|| sum_of_squares(left), || sum_of_squares(right));
    left + right
}

fn leaf(x: &[f32]) -> f64 {
    simd::vectorize(
        #[inline(always)]
        || {
            let mut lanes = [0.0; LANES];
            let (chunks, rest) = x.as_chunks::<LANES>();
            for chunk in chunks {
                simd::prefetch_ahead(chunk);
                for lane in 0..LANES {
                    let value = f64::from(chunk[lane]);
                    lanes[lane] += value * value;
                }
            }
            for (lane, &value) in lanes.iter_mut().zip(rest) {
                *lane += f64::from(value) * f64::from(value);
            }
            simd::sum(&lanes)
        },
    )
}

/// The index of the first element that is infinite or not a number.
///
/// For the error message; [`sum_of_squares`] finds out for free whether there is one.
pub fn first_non_finite(x: &[f32]) -> Option<usize> {
    x.iter().position(|value| !value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::{first_non_finite, sum_of_squares};
    use crate::ops::testing::{on_threads, uniform};

    #[test]
    fn equals_a_plain_sum_and_is_the_same_on_any_pool() {
        for len in [0, 1, 17, 16_384, 16_385, 100_003] {
            let x: Vec<f32> = uniform(len, 3);
            let plain: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
            let one = on_threads(1, || sum_of_squares(&x));
            assert!((one - plain).abs() <= 1e-12 * plain, "{one} {plain}");
            for threads in [2, 3] {
                assert_eq!(on_threads(threads, || sum_of_squares(&x)).to_bits(), one.to_bits());
            }
        }
    }

    #[test]
    fn every_non_finite_element_shows() {
        for (at, bad) in [(0, f32::NAN), (40_000, f32::INFINITY), (49_999, f32::NEG_INFINITY)] {
            let mut x = vec![f32::MAX; 50_000];
            assert!(sum_of_squares(&x).is_finite());
            x[at] = bad;
            assert!(!sum_of_squares(&x).is_finite());
            assert_eq!(first_non_finite(&x), Some(at));
        }
    }
}
