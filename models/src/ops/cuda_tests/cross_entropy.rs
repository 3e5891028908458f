//! Losses, and logits that become their gradient.

use device::Allocator;
use half::bf16;

use super::device::{Bound, Memory, Numbers, assert_close};
use crate::layout::head_rows;
use crate::ops::cross_entropy::cuda::{CrossEntropy, LogitsShape};
use crate::ops::cross_entropy::{self, Workspace};
use crate::ops::kernels::CudaElement;
use crate::ops::matmul::{self, Sums};
use crate::ops::testing::uniform;

/// Tokens and V: one token, fewer columns than packs, no multiple of a pack, more columns than a
/// block reads at once, and more losses than the block that adds them has threads.
const SHAPES: [(usize, usize); 5] = [(1, 3), (7, 37), (5, 1003), (3, 9001), (300, 11)];

const SCALE: f32 = 0.37;

/// The last column, the first column, and others.
fn targets(tokens: usize, vocabulary: usize) -> Vec<u32> {
    (0..tokens).map(|token| ((token * 7 + 1) * (vocabulary - 1) % vocabulary) as u32).collect()
}

/// Logits of such magnitude that exponentials must be relative to the maximum.
fn logits<E: CudaElement>(tokens: usize, vocabulary: usize) -> Numbers<E> {
    let mut logits: Vec<f64> = uniform(tokens * vocabulary, 1);
    for (token, row) in logits.chunks_exact_mut(vocabulary).enumerate() {
        let middle = if token % 2 == 0 { 100.0 } else { -100.0 };
        row.iter_mut().for_each(|logit| *logit = middle + 5.0 * *logit);
    }
    Numbers::rounded(&logits)
}

/// A matrix of so many rows.
fn transposed(matrix: &[f64], rows: usize) -> Vec<f64> {
    let columns = matrix.len() / rows;
    let column = |column| (0..rows).map(move |row| row * columns + column);
    (0..columns).flat_map(column).map(|index| matrix[index]).collect()
}

/// Loss and gradient (tokens, V) of logits: the CPU op's, where H is the unit matrix, so that the
/// table is the logits and its gradient theirs, both transposed.
fn exact(logits: &[f64], targets: &[u32], vocabulary: usize) -> (f64, Vec<f64>) {
    let tokens = targets.len();
    let mut hidden = vec![0.0; tokens * tokens];
    hidden.iter_mut().step_by(tokens + 1).for_each(|one| *one = 1.0);
    let table = transposed(logits, tokens);
    let shape = cross_entropy::Shape { tokens, width: tokens, vocabulary };
    let host = Allocator::host();
    let workspace = &mut Workspace::new(&host, tokens, vocabulary);
    let products = &mut matmul::Workspace::new(&host, 1);
    cross_entropy::logits(workspace, &hidden, &table, shape, products);
    let loss = cross_entropy::loss(workspace, targets, shape);
    cross_entropy::to_gradient(workspace, targets, f64::from(SCALE), shape);
    let mut dtable = vec![0.0; table.len()];
    let sums = Sums::Write;
    cross_entropy::table_gradient(&mut dtable, sums, &hidden, shape, workspace, products);
    (loss, transposed(&dtable, vocabulary))
}

/// Rows with what is behind their columns set to `rest`.
fn padded<T: Copy>(rows: &[T], width: usize, stride: usize, rest: T) -> Vec<T> {
    let mut all = vec![rest; rows.len() / width * stride];
    for (padded, row) in all.chunks_exact_mut(stride).zip(rows.chunks_exact(width)) {
        padded[..width].copy_from_slice(row);
    }
    all
}

fn agrees<E: CudaElement>() {
    // A logit's rounding error is one of its gradient, relative to it.
    const GRADIENT: Bound = Bound::rounded_once(3e-5);
    const LOSS: f64 = 1e-6;
    let memory = Memory::new();
    let kernels = CrossEntropy::new::<E>(memory.device()).unwrap();
    for (tokens, vocabulary) in SHAPES {
        let what = format!("{tokens} tokens of {vocabulary}");
        let stride = head_rows(vocabulary);
        let logits = logits::<E>(tokens, vocabulary);
        let targets = targets(tokens, vocabulary);
        let (exact_loss, exact_gradient) = exact(&logits.exact, &targets, vocabulary);
        let not_a_number = E::narrow(f32::NAN);
        let mut found = memory.upload(&padded(&logits.elements, vocabulary, stride, not_a_number));
        let targets = memory.upload(&targets);
        let mut losses = memory.unwritten(tokens);
        let mut loss = memory.upload(&[1.5]);
        let shape = LogitsShape { tokens, vocabulary, stride };
        // Once for the loss alone, and once with the gradient: both are added.
        for scale in [None, Some(SCALE)] {
            let logits = found.view_mut();
            kernels.run(losses.view_mut(), logits, targets.view(), shape, scale).unwrap();
            kernels.add_losses(loss.view_mut(), losses.view()).unwrap();
        }
        assert_close(&what, &memory.download(&loss), &[1.5 + 2.0 * exact_loss], LOSS);
        let exact = padded(&exact_gradient, vocabulary, stride, 0.0);
        GRADIENT.check(&what, &memory.download(&found), &exact);
    }
}

#[test]
fn losses_and_gradients() {
    agrees::<f32>();
    agrees::<bf16>();
}
