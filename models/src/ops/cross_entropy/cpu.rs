//! Three products and two passes over a chunk of logits.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::log_sums::PARTS;
use super::{Inputs, Workspace};
use crate::Meter;
use crate::meter::{Kind, Role};
use crate::ops::matmul::blocked::{Output, Product, ProductShape};
use crate::ops::matmul::tile::{Strided, Target};
use crate::ops::matmul::{self, Sums};
use crate::ops::simd::{self, RUN};
use crate::ops::work::{self, HeadChunk};
use crate::ops::{Element, Float};

/// Returns the sum of the losses of a chunk in nats, and keeps what [`backward`] needs.
///
/// # Panics
/// Panics if lengths do not fit together, a target is not below V, or the workspace is too small.
pub fn forward<E: Element>(
    inputs: Inputs<'_, E>,
    workspace: &mut Workspace<E>,
    products: &mut matmul::Workspace<E>,
    meter: &mut Meter,
) -> f64 {
    let (tokens, vocabulary) = inputs.check();
    let chunk = HeadChunk { tokens, width: inputs.width, vocabulary };
    let logits = &mut workspace.logits.host_mut()[..tokens * vocabulary];
    let product = Product {
        shape: ProductShape { m: vocabulary, n: tokens, k: inputs.width },
        left: Strided::dense(inputs.table, inputs.width),
        right: Strided::dense(inputs.hidden, inputs.width).transposed(),
        output: Output::plain(logits.as_mut_ptr(), tokens),
    };
    meter.time(
        (Role::Head, Kind::Forward),
        || work::head::<E>(chunk),
        // SAFETY: the lengths were checked; the logits are borrowed mutably.
        || unsafe { product.run(products) },
    );
    let op = (Role::CrossEntropy, Kind::Forward);
    meter.time(op, || work::loss::<E>(chunk), || loss(inputs.targets, workspace, vocabulary))
}

/// The sum of the losses, from the logits of a chunk.
fn loss<E: Element>(targets: &[u32], workspace: &mut Workspace<E>, vocabulary: usize) -> f64 {
    let tokens = targets.len();
    let Workspace { logits, maxima, sums, log_sums, .. } = workspace;
    let logits = &logits.host()[..tokens * vocabulary];
    let log_sums = &mut log_sums.host_mut()[..tokens];
    super::log_sums::log_sums(log_sums, logits, maxima.host_mut(), sums.host_mut());
    let target = |(token, &target): (usize, &u32)| logits[target as usize * tokens + token];
    let targets = targets.iter().enumerate().map(target);
    log_sums.iter().zip(targets).map(|(&log_sum, logit)| (log_sum - logit.widen()).to_f64()).sum()
}

/// Writes `dhidden` (tokens, C), the gradient of `scale` times the loss, and writes or adds that of
/// the table to `dtable` (V, C). Follows [`forward`] of the same chunk.
///
/// # Panics
/// Panics if lengths do not fit together.
pub fn backward<E: Element>(
    dhidden: &mut [E],
    (dtable, table_sums): (&mut [E::Wide], Sums),
    scale: E::Wide,
    inputs: Inputs<'_, E>,
    workspace: &mut Workspace<E>,
    products: &mut matmul::Workspace<E>,
    meter: &mut Meter,
) {
    let (tokens, vocabulary) = inputs.check();
    let chunk = HeadChunk { tokens, width: inputs.width, vocabulary };
    assert_eq!(dhidden.len(), inputs.hidden.len(), "dH (tokens, C)");
    assert_eq!(dtable.len(), inputs.table.len(), "dW (V, C)");
    let Workspace { logits, log_sums, hits, .. } = workspace;
    let logits = &mut logits.host_mut()[..tokens * vocabulary];
    let log_sums = &log_sums.host()[..tokens];
    meter.time(
        (Role::CrossEntropy, Kind::Backward),
        || work::loss_backward::<E>(chunk),
        || to_gradient::<E>(logits, log_sums, inputs.targets, scale, hits.host_mut()),
    );
    let dlogits = Strided::dense(logits, tokens);
    meter.time(
        (Role::Head, Kind::Input),
        || work::head::<E>(chunk),
        || {
            let product = Product {
                shape: ProductShape { m: tokens, n: inputs.width, k: vocabulary },
                left: dlogits.transposed(),
                right: Strided::dense(inputs.table, inputs.width),
                output: Output::plain(dhidden.as_mut_ptr(), inputs.width),
            };
            // SAFETY: the lengths were checked; `dhidden` is borrowed mutably.
            unsafe { product.run(products) }
        },
    );
    let product = Product {
        shape: ProductShape { m: vocabulary, n: inputs.width, k: tokens },
        left: dlogits,
        right: Strided::dense(inputs.hidden, inputs.width),
        output: Output::Wide(Target {
            start: dtable.as_mut_ptr(),
            row_stride: inputs.width,
            accumulate: table_sums == Sums::Add,
        }),
    };
    meter.time(
        (Role::Head, Kind::Weight),
        || work::head_weight::<E>(chunk, table_sums),
        // SAFETY: the lengths were checked; `dtable` is borrowed mutably.
        || unsafe { product.run(products) },
    );
}

/// The gradient of the logit of an id that is not the target.
#[inline(always)]
fn gradient<E: Element>(logit: E, log_sum: E::Wide, scale: E::Wide) -> E {
    E::narrow((logit.widen() - log_sum).exp() * scale)
}

/// Replaces logits (V, tokens) by their gradients, scale (softmax - onehot). Gradients of the
/// targets are computed separately, into `hits`, so that the main loop has no branch.
fn to_gradient<E: Element>(
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
