//! One pass over weights and both moments, in leaves of a fixed size.

use super::{Factors, UpdateSquares};
use crate::ops::adamw::AdamW;
use crate::ops::simd::LANES;
use crate::ops::{ELEMENT_CHUNK, simd};

/// The sums over weights that were updated with these parameters, and their moments after it.
///
/// # Panics
/// Panics if the lengths differ.
pub fn update_squares(
    weights: &[f32],
    first_moments: &[f32],
    second_moments: &[f32],
    adamw: &AdamW,
) -> UpdateSquares {
    let len = weights.len();
    assert_eq!(first_moments.len(), len, "first moments as long as weights");
    assert_eq!(second_moments.len(), len, "second moments as long as weights");
    let updated = Updated { weights, first: first_moments, second: second_moments };
    updated.squares(&F32Factors::new(&Factors::new(adamw)))
}

/// The factors in the format that the update was computed in.
struct F32Factors {
    decay: f32,
    rate: f32,
    root_correction: f32,
    epsilon: f32,
}

impl F32Factors {
    fn new(factors: &Factors) -> Self {
        Self {
            decay: factors.decay as f32,
            rate: factors.rate as f32,
            root_correction: factors.root_correction as f32,
            epsilon: factors.epsilon as f32,
        }
    }
}

/// Updated elements, slices of one length.
#[derive(Clone, Copy)]
struct Updated<'a> {
    weights: &'a [f32],
    first: &'a [f32],
    second: &'a [f32],
}

impl Updated<'_> {
    fn squares(self, factors: &F32Factors) -> UpdateSquares {
        let len = self.weights.len();
        if len <= ELEMENT_CHUNK {
            return self.leaf(factors);
        }
        let middle = len.div_ceil(ELEMENT_CHUNK).div_ceil(2) * ELEMENT_CHUNK;
        let [left, right] = self.split_at(middle);
        let (left, right) = rayon::join(|| left.squares(factors), || right.squares(factors));
        UpdateSquares { weights: left.weights + right.weights, update: left.update + right.update }
    }

    fn split_at(self, middle: usize) -> [Self; 2] {
        let (weights, weights_right) = self.weights.split_at(middle);
        let (first, first_right) = self.first.split_at(middle);
        let (second, second_right) = self.second.split_at(middle);
        let right = Self { weights: weights_right, first: first_right, second: second_right };
        [Self { weights, first, second }, right]
    }

    fn leaf(self, factors: &F32Factors) -> UpdateSquares {
        simd::vectorize(
            #[inline(always)]
            || {
                // Arrays of their own, and one loop over lanes: all of it stays in registers.
                let mut of_weights = [0.0; LANES];
                let mut of_update = [0.0; LANES];
                let (weights, weights_rest) = self.weights.as_chunks::<LANES>();
                let (first, first_rest) = self.first.as_chunks::<LANES>();
                let (second, second_rest) = self.second.as_chunks::<LANES>();
                for ((weights, first), second) in weights.iter().zip(first).zip(second) {
                    for stream in [weights, first, second] {
                        simd::prefetch_ahead(stream);
                    }
                    for lane in 0..LANES {
                        let update = update_of(weights[lane], first[lane], second[lane], factors);
                        of_weights[lane] += square(weights[lane]);
                        of_update[lane] += square(update);
                    }
                }
                let rest = weights_rest.iter().zip(first_rest).zip(second_rest);
                for (lane, ((&weight, &first), &second)) in rest.enumerate() {
                    of_weights[lane] += square(weight);
                    of_update[lane] += square(update_of(weight, first, second, factors));
                }
                UpdateSquares { weights: simd::sum(&of_weights), update: simd::sum(&of_update) }
            },
        )
    }
}

#[inline(always)]
fn square(value: f32) -> f64 {
    f64::from(value) * f64::from(value)
}

/// Amount that the update subtracted from a weight.
#[inline(always)]
fn update_of(weight: f32, first: f32, second: f32, factors: &F32Factors) -> f32 {
    let root = second.sqrt() * factors.root_correction + factors.epsilon;
    factors.decay * weight + factors.rate * first / root
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::adamw;
    use crate::ops::testing::{on_threads, uniform};

    fn parameters(number: i32, weight_decay: f64) -> AdamW {
        AdamW {
            learning_rate: 1e-2,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay,
            correction1: 1.0 - 0.9_f64.powi(number),
            correction2: 1.0 - 0.95_f64.powi(number),
            gradient_scale: 0.5,
        }
    }

    /// Weights and moments after three steps, and the weights before the last.
    struct Trained {
        before: Vec<f32>,
        weights: Vec<f32>,
        first: Vec<f32>,
        second: Vec<f32>,
    }

    fn trained(len: usize, weight_decay: f64) -> Trained {
        let weights: Vec<f32> = uniform(len, 1);
        let zeros = vec![0.0; len];
        let mut state =
            Trained { before: Vec::new(), weights, first: zeros.clone(), second: zeros };
        for number in 1..=3 {
            state.before = state.weights.clone();
            let gradients: Vec<f32> = uniform(len, 10 + number as u64);
            let Trained { weights, first, second, .. } = &mut state;
            adamw::step(weights, &gradients, first, second, &parameters(number, weight_decay));
        }
        state
    }

    fn squares(state: &Trained, weight_decay: f64) -> UpdateSquares {
        let Trained { weights, first, second, .. } = state;
        update_squares(weights, first, second, &parameters(3, weight_decay))
    }

    #[test]
    fn sums_are_those_of_the_weights_and_of_their_differences() {
        for len in [0, 1, 17, 16_384, 16_385, 100_003] {
            for weight_decay in [0.0, 0.1, 5.0] {
                let state = trained(len, weight_decay);
                let found = squares(&state, weight_decay);
                let square = |value: f64| value * value;
                let weights: f64 = state.weights.iter().map(|&w| square(w.into())).sum();
                let pairs = state.weights.iter().zip(&state.before);
                let update: f64 =
                    pairs.map(|(&w, &old)| square(f64::from(w) - f64::from(old))).sum();
                assert!((found.weights - weights).abs() <= 1e-12 * weights, "{len}: {found:?}");
                // Stored weights are rounded: 2^-24 of a weight, against an update of 1e-2.
                assert!(
                    (found.update - update).abs() <= 1e-4 * update,
                    "{len}: {found:?} {update}"
                );
            }
        }
    }

    #[test]
    fn the_same_bits_on_any_pool() {
        let state = trained(100_003, 0.1);
        let one = on_threads(1, || squares(&state, 0.1));
        for threads in [2, 3] {
            assert_eq!(on_threads(threads, || squares(&state, 0.1)), one);
        }
    }
}
