//! The log-sum-exp of each token's logits.
//!
//! Parts of the vocabulary are summed separately, each relative to the maximum so far, and then
//! joined in their order. A part is read once, in tiles of some ids of some tokens: for their
//! maxima and then, from the first-level cache, for their exponentials.

use rayon::prelude::*;

use crate::ops::simd::{self, LANES};
use crate::ops::{Element, Float};

/// Parts of the vocabulary.
pub(super) const PARTS: usize = 64;
/// Tokens of a tile.
const COLUMNS: usize = 64;
/// Ids of a tile.
const ROWS: usize = 8;

/// Writes `log_sums` (tokens) of `logits` (V, tokens); `maxima` and `sums` (parts, tokens) are
/// scratch memory.
pub(super) fn log_sums<E: Element>(
    log_sums: &mut [E::Wide],
    logits: &[E],
    maxima: &mut [E::Wide],
    sums: &mut [E::Wide],
) {
    let tokens = log_sums.len();
    let part_len = (logits.len() / tokens).div_ceil(PARTS) * tokens;
    let parts = logits.len().div_ceil(part_len);
    let maxima = &mut maxima[..parts * tokens];
    let sums = &mut sums[..parts * tokens];
    let partial = maxima.par_chunks_exact_mut(tokens).zip(sums.par_chunks_exact_mut(tokens));
    logits.par_chunks(part_len).zip(partial).for_each(|(logits, (maxima, sums))| {
        simd::vectorize(
            #[inline(always)]
            || part(logits, maxima, sums),
        );
    });
    simd::vectorize(
        #[inline(always)]
        || join(log_sums, maxima, sums),
    );
    for (log_sum, &sum) in log_sums.iter_mut().zip(&*sums) {
        *log_sum += E::Wide::from_f64(sum.to_f64().ln());
    }
}

/// The maximum of each token over some ids, and the sum of exponentials relative to it.
#[inline(always)]
fn part<E: Element>(logits: &[E], maxima: &mut [E::Wide], sums: &mut [E::Wide]) {
    let tokens = maxima.len();
    maxima.fill(E::Wide::LOWEST);
    sums.fill(E::Wide::ZERO);
    for ids in logits.chunks(ROWS * tokens) {
        let tiles = maxima.chunks_mut(COLUMNS).zip(sums.chunks_mut(COLUMNS));
        for (index, (maxima, sums)) in tiles.enumerate() {
            let first = index * COLUMNS;
            // A constant length compiles to loops without remainders.
            if maxima.len() == COLUMNS {
                let rows = || ids.chunks_exact(tokens).map(|row| &row[first..first + COLUMNS]);
                tile(rows, tokens, &mut maxima[..COLUMNS], &mut sums[..COLUMNS]);
            } else {
                let end = first + maxima.len();
                let rows = || ids.chunks_exact(tokens).map(|row| &row[first..end]);
                tile(rows, tokens, maxima, sums);
            }
        }
    }
}

/// Adds a tile to the maxima and sums of its tokens, and prefetches the tile below, which is far
/// away in memory: rows of logits are `tokens` long.
#[inline(always)]
fn tile<'a, E: Element, Rows: Iterator<Item = &'a [E]>>(
    rows: impl Fn() -> Rows,
    tokens: usize,
    maxima: &mut [E::Wide],
    sums: &mut [E::Wide],
) {
    let mut higher = [E::Wide::LOWEST; COLUMNS];
    let higher = &mut higher[..maxima.len()];
    let pieces = higher.chunks_mut(LANES).zip(maxima.chunks(LANES));
    for (piece, (higher, maxima)) in pieces.enumerate() {
        let mut lanes = [E::Wide::LOWEST; LANES];
        lanes[..maxima.len()].copy_from_slice(maxima);
        for row in rows() {
            for (lane, logit) in lanes.iter_mut().zip(&row[piece * LANES..]) {
                *lane = logit.widen().larger(*lane);
            }
        }
        higher.copy_from_slice(&lanes[..maxima.len()]);
    }
    // Maxima seldom rise after the first ids. Without an early exit, so that it vectorises.
    let rose = higher.iter().zip(&*maxima).fold(false, |rose, (a, b)| rose | (a != b));
    if rose {
        for ((sum, maximum), &higher) in sums.iter_mut().zip(&mut *maxima).zip(&*higher) {
            *sum *= (*maximum - higher).exp();
            *maximum = higher;
        }
    }
    for row in rows() {
        simd::prefetch(row.as_ptr().wrapping_add(ROWS * tokens), row.len());
        for ((sum, &maximum), logit) in sums.iter_mut().zip(&*higher).zip(row) {
            *sum += (logit.widen() - maximum).exp();
        }
    }
}

/// Writes the maximum of each token over all parts, and leaves its sum relative to that with the
/// first part's.
#[inline(always)]
fn join<T: Float>(highest: &mut [T], maxima: &[T], sums: &mut [T]) {
    let tokens = highest.len();
    highest.fill(T::LOWEST);
    for maxima in maxima.chunks_exact(tokens) {
        for (highest, &maximum) in highest.iter_mut().zip(maxima) {
            *highest = maximum.larger(*highest);
        }
    }
    for (maxima, sums) in maxima.chunks_exact(tokens).zip(sums.chunks_exact_mut(tokens)) {
        for ((sum, &maximum), &highest) in sums.iter_mut().zip(maxima).zip(&*highest) {
            *sum *= (maximum - highest).exp();
        }
    }
    let (totals, others) = sums.split_at_mut(tokens);
    for sums in others.chunks_exact(tokens) {
        for (total, &sum) in totals.iter_mut().zip(sums) {
            *total += sum;
        }
    }
}
