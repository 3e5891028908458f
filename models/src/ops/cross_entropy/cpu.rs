//! Three products and two passes over a chunk of logits.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::{Inputs, PARTS, Workspace};
use crate::ops::matmul::Workspace as Packs;
use crate::ops::matmul::product::{Product, Strided};
use crate::ops::{Float, simd};

/// Tokens of the inner loops: their maxima or sums stay in registers.
const LANES: usize = 32;

/// Returns the sum of the losses of a chunk in nats, and keeps what [`backward`] needs.
///
/// # Panics
/// When lengths do not fit together, a target is not below V, or the workspace is too small.
pub fn forward<T: Float>(
    inputs: Inputs<'_, T>,
    workspace: &mut Workspace<T>,
    packs: &mut Packs<T>,
) -> f64 {
    let (tokens, vocabulary) = inputs.check();
    let Workspace { logits, maxima, sums, log_sums } = workspace;
    let logits = &mut logits[..tokens * vocabulary];
    let product = Product {
        shape: (vocabulary, tokens, inputs.width),
        left: Strided::dense(inputs.table, inputs.width),
        right: Strided::dense(inputs.hidden, inputs.width).transposed(),
        output: logits.as_mut_ptr(),
        output_row: tokens,
        accumulate: false,
    };
    // SAFETY: the lengths were checked; the logits are borrowed mutably.
    unsafe { product.run_parallel(&mut packs.packs) };

    let part_len = vocabulary.div_ceil(PARTS) * tokens;
    let parts = logits.len().div_ceil(part_len);
    let (maxima, sums) = (&mut maxima[..parts * tokens], &mut sums[..parts * tokens]);
    let partial = maxima.par_chunks_exact_mut(tokens).zip(sums.par_chunks_exact_mut(tokens));
    logits.par_chunks(part_len).zip(partial).for_each(|(logits, (maxima, sums))| {
        simd::vectorize(
            #[inline(always)]
            || partial_sums(logits, maxima, sums),
        );
    });
    let log_sums = &mut log_sums[..tokens];
    let mut loss = 0.0;
    for (token, (log_sum, &target)) in log_sums.iter_mut().zip(inputs.targets).enumerate() {
        let parts = || maxima[token..].iter().step_by(tokens).copied();
        let maximum = parts().fold(T::LOWEST, |a, b| b.larger(a));
        let sums = sums[token..].iter().step_by(tokens);
        let sum = parts().zip(sums).fold(T::ZERO, |a, (m, &s)| a + s * (m - maximum).exp());
        *log_sum = maximum + T::from_f64(sum.to_f64().ln());
        loss += (*log_sum - logits[target as usize * tokens + token]).to_f64();
    }
    loss
}

/// The maximum of each token over some ids, and the sum of exponentials relative to it.
#[inline(always)]
fn partial_sums<T: Float>(logits: &[T], maxima: &mut [T], sums: &mut [T]) {
    let tokens = maxima.len();
    for first in (0..tokens).step_by(LANES) {
        let width = LANES.min(tokens - first);
        let (mut maximum, mut sum) = ([T::LOWEST; LANES], [T::ZERO; LANES]);
        // Short chunks get LANES of their own length; all others a length known to the compiler.
        if width == LANES {
            columns(logits, tokens, first, &mut maximum, &mut sum);
        } else {
            columns(logits, tokens, first, &mut maximum[..width], &mut sum[..width]);
        }
        maxima[first..first + width].copy_from_slice(&maximum[..width]);
        sums[first..first + width].copy_from_slice(&sum[..width]);
    }
}

#[inline(always)]
fn columns<T: Float>(logits: &[T], tokens: usize, first: usize, maximum: &mut [T], sum: &mut [T]) {
    let width = maximum.len();
    for row in logits.chunks_exact(tokens) {
        for (maximum, &logit) in maximum.iter_mut().zip(&row[first..first + width]) {
            *maximum = logit.larger(*maximum);
        }
    }
    for row in logits.chunks_exact(tokens) {
        let row = &row[first..first + width];
        for ((sum, &maximum), &logit) in sum.iter_mut().zip(&*maximum).zip(row) {
            *sum += (logit - maximum).exp();
        }
    }
}

/// Writes `dhidden` (tokens, C), the gradient of `scale` times the loss, and adds to `dtable`
/// (V, C). Follows [`forward`] of the same chunk.
///
/// # Panics
/// When lengths do not fit together.
pub fn backward<T: Float>(
    dhidden: &mut [T],
    dtable: &mut [T],
    scale: T,
    inputs: Inputs<'_, T>,
    workspace: &mut Workspace<T>,
    packs: &mut Packs<T>,
) {
    let (tokens, vocabulary) = inputs.check();
    assert_eq!(dhidden.len(), inputs.hidden.len(), "dH (tokens, C)");
    assert_eq!(dtable.len(), inputs.table.len(), "dW (V, C)");
    let logits = &mut workspace.logits[..tokens * vocabulary];
    to_gradient(logits, &workspace.log_sums[..tokens], scale);
    for (token, &target) in inputs.targets.iter().enumerate() {
        logits[target as usize * tokens + token] -= scale;
    }
    let product = Product {
        shape: (tokens, inputs.width, vocabulary),
        left: Strided::dense(logits, tokens).transposed(),
        right: Strided::dense(inputs.table, inputs.width),
        output: dhidden.as_mut_ptr(),
        output_row: inputs.width,
        accumulate: false,
    };
    // SAFETY: the lengths were checked; `dhidden` is borrowed mutably.
    unsafe { product.run_parallel(&mut packs.packs) };
    let product = Product {
        shape: (vocabulary, inputs.width, tokens),
        left: Strided::dense(logits, tokens),
        right: Strided::dense(inputs.hidden, inputs.width),
        output: dtable.as_mut_ptr(),
        output_row: inputs.width,
        accumulate: true,
    };
    // SAFETY: the lengths were checked; `dtable` is borrowed mutably.
    unsafe { product.run_parallel(&mut packs.packs) };
}

/// Logits (V, tokens) to scale x softmax, in place.
fn to_gradient<T: Float>(logits: &mut [T], log_sums: &[T], scale: T) {
    let tokens = log_sums.len();
    let part_len = (logits.len() / tokens).div_ceil(PARTS) * tokens;
    logits.par_chunks_mut(part_len).for_each(|logits| {
        simd::vectorize(
            #[inline(always)]
            || {
                for row in logits.chunks_exact_mut(tokens) {
                    for (logit, &log_sum) in row.iter_mut().zip(log_sums) {
                        *logit = (*logit - log_sum).exp() * scale;
                    }
                }
            },
        );
    });
}

#[cfg(test)]
mod tests {
    use super::super::chunk_tokens;
    use super::{Inputs, Packs, Workspace, backward, forward};
    use crate::ops::testing::{check_gradient, inner, relative_error, uniform};
    use crate::ops::{Float, testing::on_threads};

    const WIDTH: usize = 6;

    fn targets(tokens: usize, vocabulary: usize) -> Vec<u32> {
        (0..tokens).map(|i| (i * i * 7 % vocabulary) as u32).collect()
    }

    struct Outcome<T> {
        loss: f64,
        dhidden: Vec<T>,
        dtable: Vec<T>,
    }

    fn run<T: Float>(hidden: &[T], table: &[T], targets: &[u32], scale: f64) -> Outcome<T> {
        let mut workspace = Workspace::new(targets.len(), table.len() / WIDTH);
        let mut packs = Packs::new(2);
        let inputs = Inputs { hidden, table, targets, width: WIDTH };
        let loss = forward(inputs, &mut workspace, &mut packs);
        let (mut dhidden, mut dtable) = (vec![T::ONE; hidden.len()], vec![T::ZERO; table.len()]);
        let scale = T::from_f64(scale);
        backward(&mut dhidden, &mut dtable, scale, inputs, &mut workspace, &mut packs);
        Outcome { loss, dhidden, dtable }
    }

    fn naive(hidden: &[f64], table: &[f64], targets: &[u32]) -> f64 {
        let mut loss = 0.0;
        for (hidden, &target) in hidden.chunks(WIDTH).zip(targets) {
            let logits: Vec<f64> = table.chunks(WIDTH).map(|row| inner(hidden, row)).collect();
            let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
            loss += sum.ln() - logits[target as usize];
        }
        loss
    }

    #[test]
    fn agrees_with_the_formula_and_finite_differences() {
        for (tokens, vocabulary) in [(1, 2), (7, 37), (33, 130)] {
            let hidden: Vec<f64> = uniform(tokens * WIDTH, 1);
            let table: Vec<f64> = uniform(vocabulary * WIDTH, 2);
            let targets = targets(tokens, vocabulary);
            let found = run(&hidden, &table, &targets, 0.5);
            let exact = naive(&hidden, &table, &targets);
            assert!((found.loss - exact).abs() < 1e-12 * exact, "{} {exact}", found.loss);
            let loss = |hidden: &[f64], table: &[f64]| 0.5 * naive(hidden, table, &targets);
            check_gradient("hidden", &hidden, &found.dhidden, |hidden| loss(hidden, &table));
            check_gradient("table", &table, &found.dtable, |table| loss(&hidden, table));
        }
    }

    #[test]
    fn large_logits_in_f32_stay_exact() {
        let (tokens, vocabulary) = (40, 300);
        let hidden: Vec<f64> = uniform(tokens * WIDTH, 1);
        let table: Vec<f64> = uniform(vocabulary * WIDTH, 2);
        let large = |x: &[f64]| x.iter().map(|x| (x * 16.0) as f32).collect::<Vec<f32>>();
        let (hidden, table) = (large(&hidden), large(&table));
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let targets = targets(tokens, vocabulary);
        let found = run(&hidden, &table, &targets, 1.0);
        let exact = run(&wide(&hidden), &wide(&table), &targets, 1.0);
        assert!((found.loss - exact.loss).abs() < 1e-5 * exact.loss);
        assert!(relative_error(&found.dhidden, &exact.dhidden) < 1e-4);
        assert!(relative_error(&found.dtable, &exact.dtable) < 1e-4);
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let hidden: Vec<f32> = uniform(70 * WIDTH, 1);
        let table: Vec<f32> = uniform(200 * WIDTH, 2);
        let targets = targets(70, 200);
        let run = |threads| on_threads(threads, || run(&hidden, &table, &targets, 1.0));
        let (one, three) = (run(1), run(3));
        assert_eq!(one.loss.to_bits(), three.loss.to_bits());
        assert!(one.dhidden == three.dhidden && one.dtable == three.dtable);
    }

    #[test]
    fn a_logit_that_is_not_a_number_shows_in_the_loss() {
        let mut hidden: Vec<f32> = uniform(7 * WIDTH, 1);
        hidden[3 * WIDTH] = f32::NAN;
        let table: Vec<f32> = uniform(37 * WIDTH, 2);
        assert!(run(&hidden, &table, &targets(7, 37), 1.0).loss.is_nan());
    }

    #[test]
    fn chunks_cover_a_batch_within_their_memory() {
        assert_eq!(chunk_tokens::<f32>(1024, 50257), 256);
        assert_eq!(chunk_tokens::<f32>(14, 37), 14);
        assert_eq!(chunk_tokens::<f32>(1 << 20, 50257), 320);
    }
}
