//! Three products and two passes over a chunk of logits.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::log_sums::PARTS;
use super::{Shape, Workspace};
use crate::ops::matmul::blocked::{Output, Product, ProductShape};
use crate::ops::matmul::tile::{Strided, Target};
use crate::ops::matmul::{self, Sums};
use crate::ops::simd::{self, RUN};
use crate::ops::{Element, Float};

/// Computes the logits of a chunk in the workspace: H (tokens, C) times W (V, C).
///
/// # Panics
/// Panics if lengths do not fit together, or the workspace is too small.
pub fn logits<E: Element>(
    workspace: &mut Workspace<E>,
    hidden: &[E],
    table: &[E],
    shape: Shape,
    products: &mut matmul::Workspace<E>,
) {
    let Shape { tokens, width, vocabulary } = shape;
    shape.check(hidden.len(), table.len());
    let product = Product {
        shape: ProductShape { m: vocabulary, n: tokens, k: width },
        left: Strided::dense(table, width),
        right: Strided::dense(hidden, width).transposed(),
        output: Output::plain(workspace.logits(shape).as_mut_ptr(), tokens),
    };
    // SAFETY: the lengths were checked; the logits are borrowed mutably.
    unsafe { product.run(products) };
}

/// Returns the sum of the losses of a chunk in nats, and keeps what [`to_gradient`] needs. Follows
/// [`logits`].
///
/// # Panics
/// Panics if a target is not below V.
pub fn loss<E: Element>(workspace: &mut Workspace<E>, targets: &[u32], shape: Shape) -> f64 {
    let Shape { tokens, vocabulary, .. } = shape;
    assert_eq!(targets.len(), tokens, "a target for each token");
    assert!(targets.iter().all(|&t| (t as usize) < vocabulary), "targets below V");
    let Workspace { logits, maxima, sums, log_sums, .. } = workspace;
    let logits = &logits.host()[..tokens * vocabulary];
    let log_sums = &mut log_sums.host_mut()[..tokens];
    super::log_sums::log_sums(log_sums, logits, maxima.host_mut(), sums.host_mut());
    let target = |(token, &target): (usize, &u32)| logits[target as usize * tokens + token];
    let targets = targets.iter().enumerate().map(target);
    log_sums.iter().zip(targets).map(|(&log_sum, logit)| (log_sum - logit.widen()).to_f64()).sum()
}

/// Replaces the logits of a chunk by the gradient of `scale` times its loss. Follows [`loss`].
///
/// # Panics
/// Panics if lengths do not fit together.
pub fn to_gradient<E: Element>(
    workspace: &mut Workspace<E>,
    targets: &[u32],
    scale: E::Wide,
    shape: Shape,
) {
    let Shape { tokens, vocabulary, .. } = shape;
    assert_eq!(targets.len(), tokens, "a target for each token");
    let Workspace { logits, log_sums, hits, .. } = workspace;
    let logits = &mut logits.host_mut()[..tokens * vocabulary];
    replace(logits, &log_sums.host()[..tokens], targets, scale, hits.host_mut());
}

/// Writes dH (tokens, C), from the gradient of the logits. Follows [`to_gradient`].
///
/// # Panics
/// Panics if lengths do not fit together.
pub fn hidden_gradient<E: Element>(
    dhidden: &mut [E],
    table: &[E],
    shape: Shape,
    workspace: &mut Workspace<E>,
    products: &mut matmul::Workspace<E>,
) {
    let Shape { tokens, width, vocabulary } = shape;
    shape.check(dhidden.len(), table.len());
    let product = Product {
        shape: ProductShape { m: tokens, n: width, k: vocabulary },
        left: Strided::dense(workspace.logits(shape), tokens).transposed(),
        right: Strided::dense(table, width),
        output: Output::plain(dhidden.as_mut_ptr(), width),
    };
    // SAFETY: the lengths were checked; `dhidden` is borrowed mutably.
    unsafe { product.run(products) };
}

/// Writes dW (V, C) or adds it, from the gradient of the logits. Follows [`to_gradient`].
///
/// # Panics
/// Panics if lengths do not fit together.
pub fn table_gradient<E: Element>(
    dtable: &mut [E::Wide],
    sums: Sums,
    hidden: &[E],
    shape: Shape,
    workspace: &mut Workspace<E>,
    products: &mut matmul::Workspace<E>,
) {
    let Shape { tokens, width, vocabulary } = shape;
    shape.check(hidden.len(), dtable.len());
    let product = Product {
        shape: ProductShape { m: vocabulary, n: width, k: tokens },
        left: Strided::dense(workspace.logits(shape), tokens),
        right: Strided::dense(hidden, width),
        output: Output::Wide(Target {
            start: dtable.as_mut_ptr(),
            row_stride: width,
            accumulate: sums == Sums::Add,
        }),
    };
    // SAFETY: the lengths were checked; `dtable` is borrowed mutably.
    unsafe { product.run(products) };
}

/// The gradient of the logit of an id that is not the target.
#[inline(always)]
fn gradient<E: Element>(logit: E, log_sum: E::Wide, scale: E::Wide) -> E {
    E::narrow((logit.widen() - log_sum).exp() * scale)
}

/// Replaces logits (V, tokens) by their gradients, scale (softmax - onehot). Gradients of the
/// targets are computed separately, into `hits`, so that the main loop has no branch.
fn replace<E: Element>(
    logits: &mut [E],
    log_sums: &[E::Wide],
    targets: &[u32],
    scale: E::Wide,
    hits: &mut [E],
) {
    let tokens = log_sums.len();
    let index = |(token, &target): (usize, &u32)| target as usize * tokens + token;
    let targets = || targets.iter().enumerate().map(index);
    for ((hit, &log_sum), index) in hits.iter_mut().zip(log_sums).zip(targets()) {
        *hit = E::narrow((logits[index].widen() - log_sum).exp() * scale - scale);
    }
    let part_rows = (logits.len() / tokens).div_ceil(PARTS);
    logits.par_chunks_mut(part_rows * tokens).for_each(|logits| {
        simd::vectorize(
            #[inline(always)]
            || {
                for row in logits.chunks_exact_mut(tokens) {
                    let (runs, rest) = row.as_chunks_mut::<RUN>();
                    let (log_sum_runs, log_sum_rest) = log_sums.as_chunks::<RUN>();
                    for (logits, log_sums) in runs.iter_mut().zip(log_sum_runs) {
                        simd::prefetch_ahead(logits);
                        for (logit, &log_sum) in logits.iter_mut().zip(log_sums) {
                            *logit = gradient(*logit, log_sum, scale);
                        }
                    }
                    for (logit, &log_sum) in rest.iter_mut().zip(log_sum_rest) {
                        *logit = gradient(*logit, log_sum, scale);
                    }
                }
            },
        );
    });
    for (&hit, index) in hits.iter().zip(targets()) {
        logits[index] = hit;
    }
}
