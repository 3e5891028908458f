//! Scores to probabilities, forward with a running maximum and backward from the log-sum-exps.

use super::BLOCK;
use super::cells::{across_rows, along_row};
use crate::ops::{Element, Float};

/// Scores or changes of one key for each query of a block.
type Row<W> = [W; BLOCK];

/// Maximum and sum of exponentials so far, for each query of a block.
pub(super) struct Softmax<W> {
    /// Before the division by sqrt(D).
    pub(super) maximum: Row<W>,
    pub(super) sum: Row<W>,
    /// What earlier sums and outputs are to be multiplied by after the last block.
    pub(super) correction: Row<W>,
}

impl<W: Float> Softmax<W> {
    pub(super) fn new() -> Self {
        Self { maximum: [W::LOWEST; BLOCK], sum: [W::ZERO; BLOCK], correction: [W::ZERO; BLOCK] }
    }

    /// Turns S^T sqrt(D) into exponentials relative to the maximum so far, in cells along the keys,
    /// and adds up their sums. The row after the last of an odd number is taken as zeros.
    #[inline(always)]
    pub(super) fn absorb<E: Element<Wide = W>, const PAIRS: bool>(
        &mut self,
        scores: &mut [Row<W>],
        cells: &mut [Row<W>],
        scale: W,
        diagonal: bool,
    ) {
        if diagonal {
            mask(scores);
        }
        let mut maximum = self.maximum;
        for scores in &*scores {
            for (maximum, &score) in maximum.iter_mut().zip(scores) {
                *maximum = score.larger(*maximum);
            }
        }
        for (query, &maximum) in maximum.iter().enumerate() {
            let correction = ((self.maximum[query] - maximum) * scale).exp();
            self.correction[query] = correction;
            self.sum[query] *= correction;
        }
        self.maximum = maximum;
        for (index, pair) in scores.chunks(2).enumerate() {
            let first = self.powers(&pair[0], scale);
            let second = match pair.get(1) {
                Some(second) => self.powers(second, scale),
                None => [E::ZERO; BLOCK],
            };
            across_rows::<E, PAIRS>(cells, index, &[first, second]);
        }
    }

    #[inline(always)]
    fn powers<E: Element<Wide = W>>(&mut self, scores: &Row<W>, scale: W) -> [E; BLOCK] {
        let mut powers = [E::ZERO; BLOCK];
        for query in 0..BLOCK {
            let power = ((scores[query] - self.maximum[query]) * scale).exp();
            self.sum[query] += power;
            powers[query] = E::narrow(power);
        }
        powers
    }
}

/// Takes the queries before each key out of a block on the diagonal.
#[inline(always)]
fn mask<W: Float>(scores: &mut [Row<W>]) {
    for (key, scores) in scores.iter_mut().enumerate() {
        scores[..key].fill(W::LOWEST);
    }
}

/// What backward knows of each query of a block.
pub(super) struct Queries<W> {
    pub(super) log_sums: Row<W>,
    /// Of dout out.
    pub(super) row_sums: Row<W>,
    /// 1 / sqrt(D).
    pub(super) scale: W,
}

impl<W: Float> Queries<W> {
    /// From S^T sqrt(D) and dP^T: P^T and dS^T / sqrt(D) in cells along the queries, and the latter
    /// also along the keys.
    #[inline(always)]
    pub(super) fn differentiate<E: Element<Wide = W>, const PAIRS: bool>(
        &self,
        (scores, changes): (&mut [Row<W>], &[Row<W>]),
        along_keys: &mut [Row<W>],
        [probabilities, differences]: [&mut [Row<W>]; 2],
        diagonal: bool,
    ) {
        if diagonal {
            mask(scores);
        }
        let keys = scores.len();
        for index in 0..keys.div_ceil(2) {
            let mut rows = [[E::ZERO; BLOCK]; 2];
            for (key, row) in (2 * index..keys).zip(&mut rows) {
                let mut powers = [E::ZERO; BLOCK];
                for query in 0..BLOCK {
                    let power = (scores[key][query] * self.scale - self.log_sums[query]).exp();
                    powers[query] = E::narrow(power);
                    let change = changes[key][query] - self.row_sums[query];
                    row[query] = E::narrow(power * change * self.scale);
                }
                along_row::<E, PAIRS>(&mut probabilities[key], &powers);
                along_row::<E, PAIRS>(&mut differences[key], row);
            }
            across_rows::<E, PAIRS>(along_keys, index, &rows);
        }
    }
}
