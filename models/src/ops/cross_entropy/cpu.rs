//! Three products and two passes over a chunk of logits.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::{Inputs, PARTS, Workspace};
use crate::Meter;
use crate::meter::{Kind, Role};
use crate::ops::matmul::output::{Narrow, Output, Then};
use crate::ops::matmul::product::{Product, Right};
use crate::ops::matmul::strided::Strided;
use crate::ops::matmul::{Sums, Workspace as Packs};
use crate::ops::{Element, Float, simd, work};

/// Tokens of the inner loops: their maxima or sums stay in registers.
const LANES: usize = 32;
/// Ids whose logits are read for their maxima and, still in a near cache, for their sums.
const ROWS: usize = 32;

/// Returns the sum of the losses of a chunk in nats, and keeps what [`backward`] needs.
///
/// # Panics
/// When lengths do not fit together, a target is not below V, or the workspace is too small.
pub fn forward<E: Element>(
    inputs: Inputs<'_, E>,
    workspace: &mut Workspace<E>,
    packs: &mut Packs<E>,
    meter: &mut Meter,
) -> f64 {
    let (tokens, vocabulary) = inputs.check();
    let chunk = (tokens, inputs.width, vocabulary);
    let logits = &mut workspace.logits[..tokens * vocabulary];
    let product = Product {
        shape: (vocabulary, tokens, inputs.width),
        left: Strided::dense(inputs.table, inputs.width),
        right: Right::Plain(Strided::dense(inputs.hidden, inputs.width).transposed()),
        output: Output::Wide { start: logits.as_mut_ptr(), row: tokens, accumulate: false },
    };
    meter.time(
        (Role::Head, Kind::Forward),
        || work::logits::<E>(chunk),
        // SAFETY: the lengths were checked; the logits are borrowed mutably.
        || unsafe { product.run_parallel(&mut packs.packs) },
    );
    let op = (Role::CrossEntropy, Kind::Forward);
    meter.time(op, || work::loss::<E>(chunk), || loss(inputs.targets, workspace, vocabulary))
}

/// The sum of the losses, from the logits of a chunk.
fn loss<E: Element>(targets: &[u32], workspace: &mut Workspace<E>, vocabulary: usize) -> f64 {
    let tokens = targets.len();
    let Workspace { logits, maxima, sums, log_sums } = workspace;
    let logits = &mut logits[..tokens * vocabulary];
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
    for (token, (log_sum, &target)) in log_sums.iter_mut().zip(targets).enumerate() {
        let parts = || maxima[token..].iter().step_by(tokens).copied();
        let maximum = parts().fold(E::Wide::LOWEST, |a, b| b.larger(a));
        let sums = sums[token..].iter().step_by(tokens);
        let sum = parts().zip(sums).fold(E::Wide::ZERO, |a, (m, &s)| a + s * (m - maximum).exp());
        *log_sum = maximum + E::Wide::from_f64(sum.to_f64().ln());
        loss += (*log_sum - logits[target as usize * tokens + token]).to_f64();
    }
    loss
}

/// The maximum of each token over some ids, and the sum of exponentials relative to it.
#[inline(always)]
fn partial_sums<T: Float>(logits: &[T], maxima: &mut [T], sums: &mut [T]) {
    let tokens = maxima.len();
    maxima.fill(T::LOWEST);
    sums.fill(T::ZERO);
    for logits in logits.chunks(ROWS * tokens) {
        let (known, short) = maxima.as_chunks_mut::<LANES>();
        let (known_sums, short_sums) = sums.as_chunks_mut::<LANES>();
        // Short chunks get LANES of their own length; all others a length known to the compiler.
        for (index, (maxima, sums)) in known.iter_mut().zip(known_sums).enumerate() {
            columns(logits, tokens, index * LANES, maxima, sums);
        }
        columns(logits, tokens, tokens - short.len(), short, short_sums);
    }
}

/// Takes some more ids into the maxima and sums of neighbouring tokens.
#[inline(always)]
fn columns<T: Float>(logits: &[T], tokens: usize, first: usize, maxima: &mut [T], sums: &mut [T]) {
    let width = maxima.len();
    let (mut maximum, mut sum) = ([T::LOWEST; LANES], [T::ZERO; LANES]);
    let (maximum, sum) = (&mut maximum[..width], &mut sum[..width]);
    maximum.copy_from_slice(maxima);
    for row in logits.chunks_exact(tokens) {
        // The same columns of the next ids: they are too far apart for the processor to foresee.
        simd::prefetch(row.as_ptr().wrapping_add(first + ROWS * tokens), width);
        for (maximum, &logit) in maximum.iter_mut().zip(&row[first..first + width]) {
            *maximum = logit.larger(*maximum);
        }
    }
    for ((sum, &earlier), (&before, &maximum)) in
        sum.iter_mut().zip(&*sums).zip(maxima.iter().zip(&*maximum))
    {
        *sum = earlier * (before - maximum).exp();
    }
    for row in logits.chunks_exact(tokens) {
        let row = &row[first..first + width];
        for ((sum, &maximum), &logit) in sum.iter_mut().zip(&*maximum).zip(row) {
            *sum += (logit - maximum).exp();
        }
    }
    maxima.copy_from_slice(maximum);
    sums.copy_from_slice(sum);
}

/// Writes `dhidden` (tokens, C), the gradient of `scale` times the loss, and writes or adds that of
/// the table to `dtable` (V, C). Follows [`forward`] of the same chunk.
///
/// # Panics
/// When lengths do not fit together.
pub fn backward<E: Element>(
    dhidden: &mut [E],
    (dtable, table_sums): (&mut [E::Wide], Sums),
    scale: E::Wide,
    inputs: Inputs<'_, E>,
    workspace: &mut Workspace<E>,
    packs: &mut Packs<E>,
    meter: &mut Meter,
) {
    let (tokens, vocabulary) = inputs.check();
    let chunk = (tokens, inputs.width, vocabulary);
    assert_eq!(dhidden.len(), inputs.hidden.len(), "dH (tokens, C)");
    assert_eq!(dtable.len(), inputs.table.len(), "dW (V, C)");
    let logits = &mut workspace.logits[..tokens * vocabulary];
    meter.time(
        (Role::CrossEntropy, Kind::Backward),
        || work::loss_backward::<E>(chunk),
        || to_gradient::<E>(logits, &workspace.log_sums[..tokens], inputs.targets, scale),
    );
    let dlogits = Strided {
        start: logits.as_ptr().cast::<E>(),
        row: tokens * (size_of::<E::Wide>() / size_of::<E>()),
        column: 1,
    };
    let narrow =
        Narrow { start: dhidden.as_mut_ptr(), row: inputs.width, bias: None, then: Then::Store };
    let product = Product {
        shape: (tokens, inputs.width, vocabulary),
        left: dlogits.transposed(),
        right: Right::Plain(Strided::dense(inputs.table, inputs.width)),
        output: Output::Narrow(narrow),
    };
    meter.time(
        (Role::Head, Kind::Input),
        || work::head_input::<E>(chunk),
        // SAFETY: the lengths were checked; `dhidden` is borrowed mutably.
        || unsafe { product.run_parallel(&mut packs.packs) },
    );
    let product = Product {
        shape: (vocabulary, inputs.width, tokens),
        left: dlogits,
        right: Right::Plain(Strided::dense(inputs.hidden, inputs.width)),
        output: Output::Wide {
            start: dtable.as_mut_ptr(),
            row: inputs.width,
            accumulate: table_sums == Sums::Add,
        },
    };
    meter.time(
        (Role::Head, Kind::Weight),
        || work::head_weight::<E>(chunk, table_sums),
        // SAFETY: the lengths were checked; `dtable` is borrowed mutably.
        || unsafe { product.run_parallel(&mut packs.packs) },
    );
}

/// Logits (V, tokens) to scale (softmax - onehot), in place, each row narrowed to its first part.
fn to_gradient<E: Element>(
    logits: &mut [E::Wide],
    log_sums: &[E::Wide],
    targets: &[u32],
    scale: E::Wide,
) {
    let tokens = log_sums.len();
    let part_rows = (logits.len() / tokens).div_ceil(PARTS);
    logits.par_chunks_mut(part_rows * tokens).enumerate().for_each(|(part, logits)| {
        simd::vectorize(
            #[inline(always)]
            || {
                for (index, row) in logits.chunks_exact_mut(tokens).enumerate() {
                    let id = (part * part_rows + index) as u32;
                    row_to_gradient::<E>(row, id, log_sums, targets, scale);
                }
            },
        );
    });
}

/// The row of one token id.
#[inline(always)]
fn row_to_gradient<E: Element>(
    row: &mut [E::Wide],
    id: u32,
    log_sums: &[E::Wide],
    targets: &[u32],
    scale: E::Wide,
) {
    let gradient = |logit: E::Wide, log_sum, target| {
        let hit = if target == id { scale } else { E::Wide::ZERO };
        E::narrow((logit - log_sum).exp() * scale - hit)
    };
    let start = row.as_mut_ptr();
    let known = log_sums.as_chunks::<LANES>().0.iter().zip(targets.as_chunks::<LANES>().0);
    for (index, (log_sums, targets)) in known.enumerate() {
        let first = index * LANES;
        // SAFETY: LANES elements of the row; what is written lies in front of what is still to be
        // read, because an element is no larger than a wide one.
        unsafe {
            let logits = start.add(first).cast::<[E::Wide; LANES]>().read();
            let mut narrow = [E::ZERO; LANES];
            for lane in 0..LANES {
                narrow[lane] = gradient(logits[lane], log_sums[lane], targets[lane]);
            }
            start.cast::<E>().add(first).cast::<[E; LANES]>().write(narrow);
        }
    }
    for token in row.len() / LANES * LANES..row.len() {
        // SAFETY: as above.
        unsafe {
            let narrow = gradient(start.add(token).read(), log_sums[token], targets[token]);
            start.cast::<E>().add(token).write(narrow);
        }
    }
}
