//! Scores to probabilities, forward with a running maximum and backward from the log-sum-exps.

use super::BLOCK;
use super::pack::{pack_across_rows, pack_along_row};
use crate::ops::{Element, Float};

/// Scores of one key, or their gradients, for each query of a block.
type Row<W> = [W; BLOCK];

/// Maximum and sum of exponentials so far, for each query of a block.
pub(super) struct Softmax<W> {
    /// Before the division by sqrt(D).
    pub(super) maximum: Row<W>,
    pub(super) sum: Row<W>,
    /// Factor that earlier sums and outputs need after the last update.
    pub(super) correction: Row<W>,
}

impl<W: Float> Softmax<W> {
    pub(super) fn new() -> Self {
        Self { maximum: [W::LOWEST; BLOCK], sum: [W::ZERO; BLOCK], correction: [W::ZERO; BLOCK] }
    }

    /// Converts S^T sqrt(D) of a further block of keys to exponentials relative to the maximum so
    /// far, packed along the keys, and adds up their sums. A row of zeros follows an odd number of
    /// keys.
    #[inline(always)]
    pub(super) fn update<E: Element<Wide = W>, const PAIRS: bool>(
        &mut self,
        scores: &mut [Row<W>],
        packed: &mut [Row<W>],
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
            let first = self.exponentials(&pair[0], scale);
            let second = match pair.get(1) {
                Some(second) => self.exponentials(second, scale),
                None => [E::ZERO; BLOCK],
            };
            pack_across_rows::<E, PAIRS>(packed, index, &[first, second]);
        }
    }

    #[inline(always)]
    fn exponentials<E: Element<Wide = W>>(&mut self, scores: &Row<W>, scale: W) -> [E; BLOCK] {
        let mut exponentials = [E::ZERO; BLOCK];
        for query in 0..BLOCK {
            let exponential = ((scores[query] - self.maximum[query]) * scale).exp();
            self.sum[query] += exponential;
            exponentials[query] = E::narrow(exponential);
        }
        exponentials
    }
}

/// Masks the queries before each key in a block on the diagonal.
#[inline(always)]
fn mask<W: Float>(scores: &mut [Row<W>]) {
    for (key, scores) in scores.iter_mut().enumerate() {
        scores[..key].fill(W::LOWEST);
    }
}

/// Statistics of each query of a block that backward needs.
pub(super) struct QueryStatistics<W> {
    /// Log-sum-exp of the scores.
    pub(super) log_sums: Row<W>,
    /// Sum over D of dout out.
    pub(super) row_sums: Row<W>,
    /// 1 / sqrt(D).
    pub(super) scale: W,
}

/// Scores of a block, their gradients and what backward makes of them, a row for each key.
pub(super) struct KeyBlock<'a, W> {
    /// S^T sqrt(D).
    pub(super) scores: &'a mut [Row<W>],
    /// dP^T.
    pub(super) probability_gradients: &'a [Row<W>],
    /// P^T packed along the queries.
    pub(super) probabilities: &'a mut [Row<W>],
    /// dS^T / sqrt(D) packed along the queries.
    pub(super) score_gradients: &'a mut [Row<W>],
    /// dS^T / sqrt(D) packed along the keys.
    pub(super) score_gradients_along_keys: &'a mut [Row<W>],
}

impl<W: Float> QueryStatistics<W> {
    /// P^T and dS^T / sqrt(D) from S^T sqrt(D) and dP^T.
    #[inline(always)]
    pub(super) fn differentiate<E: Element<Wide = W>, const PAIRS: bool>(
        &self,
        block: KeyBlock<'_, W>,
        diagonal: bool,
    ) {
        if diagonal {
            mask(block.scores);
        }
        let keys = block.scores.len();
        for index in 0..keys.div_ceil(2) {
            let mut rows = [[E::ZERO; BLOCK]; 2];
            for (key, row) in (2 * index..keys).zip(&mut rows) {
                let scores = &block.scores[key];
                let gradients = &block.probability_gradients[key];
                let mut probabilities = [E::ZERO; BLOCK];
                for query in 0..BLOCK {
                    let probability = (scores[query] * self.scale - self.log_sums[query]).exp();
                    probabilities[query] = E::narrow(probability);
                    let gradient = gradients[query] - self.row_sums[query];
                    row[query] = E::narrow(probability * gradient * self.scale);
                }
                pack_along_row::<E, PAIRS>(&mut block.probabilities[key], &probabilities);
                pack_along_row::<E, PAIRS>(&mut block.score_gradients[key], row);
            }
            pack_across_rows::<E, PAIRS>(block.score_gradients_along_keys, index, &rows);
        }
    }
}
