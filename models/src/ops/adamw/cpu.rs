//! One fused pass over weights, gradients and both moments.

use half::bf16;
use rayon::prelude::*;

use super::AdamW;
use crate::ops::simd::{self, RUN};
use crate::ops::{ELEMENT_CHUNK, Element, Float};

/// [`step`](super::step) in f32 or f64, and
/// [`step_and_narrow`](super::step_and_narrow) where there are working weights.
pub(crate) fn update<E: Element>(
    weights: &mut [E::Wide],
    working: Option<&mut [E]>,
    gradients: &[E::Wide],
    first_moments: &mut [E::Wide],
    second_moments: &mut [E::Wide],
    adamw: &AdamW,
) {
    let len = weights.len();
    assert_eq!(gradients.len(), len, "gradients as long as weights");
    assert_eq!(first_moments.len(), len, "first moments as long as weights");
    assert_eq!(second_moments.len(), len, "second moments as long as weights");
    let moments = first_moments
        .par_chunks_mut(ELEMENT_CHUNK)
        .zip(second_moments.par_chunks_mut(ELEMENT_CHUNK));
    let weights = weights.par_chunks_mut(ELEMENT_CHUNK).zip(gradients.par_chunks(ELEMENT_CHUNK));
    let chunks = weights.zip(moments).map(|((weights, gradients), (first, second))| Chunk {
        weights,
        gradients,
        first,
        second,
    });
    let factors = Factors::new(adamw);
    let Some(working) = working else {
        return chunks.for_each(|mut chunk| {
            simd::vectorize(
                #[inline(always)]
                || chunk.update(&factors, |_, _| ()),
            );
        });
    };
    assert_eq!(working.len(), len, "working weights as long as weights");
    chunks.zip(working.par_chunks_mut(ELEMENT_CHUNK)).for_each(|(mut chunk, working)| {
        simd::vectorize(
            #[inline(always)]
            || {
                chunk.update(&factors, |start, weights| {
                    let working = &mut working[start..start + weights.len()];
                    simd::prefetch_ahead(working);
                    round(working, weights);
                });
            },
        );
    });
}

/// Writes the weights rounded.
///
/// # Panics
/// Panics if the lengths differ.
pub fn narrow(working: &mut [bf16], weights: &[f32]) {
    assert_eq!(working.len(), weights.len(), "working weights as long as weights");
    let weights = weights.par_chunks(ELEMENT_CHUNK);
    working.par_chunks_mut(ELEMENT_CHUNK).zip(weights).for_each(|(working, weights)| {
        simd::vectorize(
            #[inline(always)]
            || round(working, weights),
        );
    });
}

#[inline(always)]
fn round<E: Element>(working: &mut [E], weights: &[E::Wide]) {
    for (working, &weight) in working.iter_mut().zip(weights) {
        *working = E::narrow(weight);
    }
}

/// The factors of every element's update.
struct Factors<T> {
    scale: T,
    beta1: T,
    beta2: T,
    rest1: T,
    rest2: T,
    epsilon: T,
    rate: T,
    root_correction: T,
    keep: T,
}

impl<T: Float> Factors<T> {
    fn new(adamw: &AdamW) -> Self {
        Self {
            scale: T::from_f64(adamw.gradient_scale),
            beta1: T::from_f64(adamw.beta1),
            beta2: T::from_f64(adamw.beta2),
            rest1: T::from_f64(1.0 - adamw.beta1),
            rest2: T::from_f64(1.0 - adamw.beta2),
            epsilon: T::from_f64(adamw.epsilon),
            rate: T::from_f64(adamw.learning_rate / adamw.correction1),
            root_correction: T::from_f64(1.0 / adamw.correction2.sqrt()),
            keep: T::from_f64(1.0 - adamw.learning_rate * adamw.weight_decay),
        }
    }
}

/// The elements that one task updates, slices of one length.
struct Chunk<'a, T> {
    weights: &'a mut [T],
    gradients: &'a [T],
    first: &'a mut [T],
    second: &'a mut [T],
}

impl<T: Float> Chunk<'_, T> {
    /// Updates all, and calls `updated` with the start of each run of new weights, and the run.
    #[inline(always)]
    fn update(&mut self, factors: &Factors<T>, mut updated: impl FnMut(usize, &[T])) {
        let (weights, weights_rest) = self.weights.as_chunks_mut::<RUN>();
        let (gradients, gradients_rest) = self.gradients.as_chunks::<RUN>();
        let (first, first_rest) = self.first.as_chunks_mut::<RUN>();
        let (second, second_rest) = self.second.as_chunks_mut::<RUN>();
        let rest_start = weights.len() * RUN;
        let moments = first.iter_mut().zip(second);
        let runs = weights.iter_mut().zip(gradients).zip(moments);
        for (index, ((weights, gradients), (first, second))) in runs.enumerate() {
            for stream in [&*weights, gradients, &*first, &*second] {
                simd::prefetch_ahead(stream);
            }
            run(weights, gradients, (first, second), factors);
            updated(index * RUN, weights);
        }
        let moments = first_rest.iter_mut().zip(second_rest);
        let rest = weights_rest.iter_mut().zip(gradients_rest).zip(moments);
        for (index, ((weight, gradient), (first, second))) in rest.enumerate() {
            let weight = std::array::from_mut(weight);
            let moments = (std::array::from_mut(first), std::array::from_mut(second));
            run(weight, std::array::from_ref(gradient), moments, factors);
            updated(rest_start + index, weight);
        }
    }
}

/// Updates N elements as values: the compiler does not know that the slices do not overlap.
#[inline(always)]
fn run<T: Float, const N: usize>(
    weights: &mut [T; N],
    gradients: &[T; N],
    (first, second): (&mut [T; N], &mut [T; N]),
    factors: &Factors<T>,
) {
    let mut new = *weights;
    let mut means = *first;
    let mut squares = *second;
    for lane in 0..N {
        let gradient = gradients[lane] * factors.scale;
        let m = factors.beta1 * means[lane] + factors.rest1 * gradient;
        let v = factors.beta2 * squares[lane] + factors.rest2 * gradient * gradient;
        let root = v.sqrt() * factors.root_correction + factors.epsilon;
        new[lane] = factors.keep * new[lane] - factors.rate * m / root;
        means[lane] = m;
        squares[lane] = v;
    }
    *weights = new;
    *first = means;
    *second = squares;
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::super::{AdamW, narrow, step_and_narrow};
    use crate::ops::testing::{relative_error, uniform};

    fn parameters(number: i32) -> AdamW {
        AdamW {
            learning_rate: 1e-2,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            correction1: 1.0 - 0.9_f64.powi(number),
            correction2: 1.0 - 0.95_f64.powi(number),
            gradient_scale: 0.5,
        }
    }

    /// The formula of the paper, literally, in f64.
    fn reference(w: &mut f64, g: f64, m: &mut f64, v: &mut f64, p: &AdamW) {
        let g = p.gradient_scale * g;
        *m = p.beta1 * *m + (1.0 - p.beta1) * g;
        *v = p.beta2 * *v + (1.0 - p.beta2) * g * g;
        let m_hat = *m / p.correction1;
        let v_hat = *v / p.correction2;
        *w -= p.learning_rate * (m_hat / (v_hat.sqrt() + p.epsilon) + p.weight_decay * *w);
    }

    #[test]
    fn three_steps_follow_the_formula() {
        let len = 20_011;
        let mut weights: Vec<f32> = uniform(len, 1);
        let mut exact: Vec<f64> = weights.iter().map(|&w| f64::from(w)).collect();
        let mut working = vec![bf16::ZERO; len];
        let mut m = vec![0.0_f32; len];
        let mut v = vec![0.0_f32; len];
        let mut exact_m = vec![0.0; len];
        let mut exact_v = vec![0.0; len];
        for number in 1..=3 {
            let gradients: Vec<f32> = uniform(len, 10 + number as u64);
            step_and_narrow(
                &mut weights,
                &mut working,
                &gradients,
                &mut m,
                &mut v,
                &parameters(number),
            );
            for i in 0..len {
                let m = &mut exact_m[i];
                let v = &mut exact_v[i];
                reference(&mut exact[i], gradients[i].into(), m, v, &parameters(number));
            }
        }
        assert!(relative_error(&weights, &exact) < 1e-6);
        assert!(relative_error(&m, &exact_m) < 1e-6);
        assert!(relative_error(&v, &exact_v) < 1e-6);
        let rounded: Vec<bf16> = weights.iter().map(|&w| bf16::from_f32(w)).collect();
        assert_eq!(working, rounded);
        working.fill(bf16::ZERO);
        narrow(&mut working, &weights);
        assert_eq!(working, rounded);
    }
}
