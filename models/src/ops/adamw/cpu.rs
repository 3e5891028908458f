//! One fused pass over weights, gradients and both moments.

use half::bf16;
use rayon::prelude::*;

use super::AdamW;
use crate::ops::{ELEMENT_CHUNK, Element, Float, simd};

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
    let Some(working) = working else {
        return weights.zip(moments).for_each(|((weights, gradients), (first, second))| {
            simd::vectorize(
                #[inline(always)]
                || chunk(weights, gradients, first, second, adamw),
            );
        });
    };
    assert_eq!(working.len(), len, "working weights as long as weights");
    let working = working.par_chunks_mut(ELEMENT_CHUNK);
    weights.zip(moments).zip(working).for_each(
        |(((weights, gradients), (first, second)), working)| {
            simd::vectorize(
                #[inline(always)]
                || {
                    chunk(weights, gradients, first, second, adamw);
                    round(working, weights); // still in the cache
                },
            );
        },
    );
}

/// Writes the weights rounded.
///
/// # Panics
/// When the lengths differ.
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

#[inline(always)]
fn chunk<T: Float>(
    weights: &mut [T],
    gradients: &[T],
    first: &mut [T],
    second: &mut [T],
    adamw: &AdamW,
) {
    let beta1 = T::from_f64(adamw.beta1);
    let beta2 = T::from_f64(adamw.beta2);
    let rest1 = T::from_f64(1.0 - adamw.beta1);
    let rest2 = T::from_f64(1.0 - adamw.beta2);
    let epsilon = T::from_f64(adamw.epsilon);
    let scale = T::from_f64(adamw.gradient_scale);
    let rate = T::from_f64(adamw.learning_rate / adamw.correction1);
    let root_correction = T::from_f64(1.0 / adamw.correction2.sqrt());
    let keep = T::from_f64(1.0 - adamw.learning_rate * adamw.weight_decay);
    let moments = first.iter_mut().zip(second);
    for ((weight, &gradient), (first, second)) in weights.iter_mut().zip(gradients).zip(moments) {
        let gradient = gradient * scale;
        let m = beta1 * *first + rest1 * gradient;
        let v = beta2 * *second + rest2 * gradient * gradient;
        *first = m;
        *second = v;
        *weight = keep * *weight - rate * m / (v.sqrt() * root_correction + epsilon);
    }
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
        let (m_hat, v_hat) = (*m / p.correction1, *v / p.correction2);
        *w -= p.learning_rate * (m_hat / (v_hat.sqrt() + p.epsilon) + p.weight_decay * *w);
    }

    #[test]
    fn three_steps_follow_the_formula() {
        let len = 20_011;
        let mut weights: Vec<f32> = uniform(len, 1);
        let mut exact: Vec<f64> = weights.iter().map(|&w| f64::from(w)).collect();
        let mut working = vec![bf16::ZERO; len];
        let (mut m, mut v) = (vec![0.0_f32; len], vec![0.0_f32; len]);
        let (mut exact_m, mut exact_v) = (vec![0.0; len], vec![0.0; len]);
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
                let (m, v) = (&mut exact_m[i], &mut exact_v[i]);
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
