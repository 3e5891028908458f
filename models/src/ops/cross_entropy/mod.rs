//! The tied head and its loss: logits = H W^T, loss = the sum of `-ln softmax(logits)[target]`.
//!
//! H is (N, C), W the token table (V, C), targets (N). Tokens are taken in chunks, so that only a
//! chunk of the logits exists ([`chunk_tokens`]); its gradient takes the same memory:
//!
//! - dlogits = scale (softmax(logits) - onehot(target))
//! - dH = dlogits W
//! - dW += dlogits^T H
//!
//! Logits are rounded once and kept as elements, as PyTorch's autocast keeps them; their softmax is
//! wide, and dlogits is rounded again for the two products.
//!
//! Logits are kept as (V, tokens): tokens along the vectors, so that no sum runs across a vector,
//! and neither W nor the logits need transposing for any of the three products.

mod cpu;
mod log_sums;
#[cfg(test)]
mod tests;

pub use cpu::{backward, forward};

use super::Element;
use super::matmul::Extent;
use super::matmul::weight::{Form, Panels};
use log_sums::PARTS;

/// Most bytes of logits in one chunk.
const LOGITS_BYTES: usize = 256 << 20;
/// Tokens of a chunk come in multiples of this where there are enough.
const TOKENS_MULTIPLE: usize = 64;

/// Tokens in one chunk of a batch of `tokens` (the last chunk may be shorter).
pub fn chunk_tokens<E: Element>(tokens: usize, vocabulary: usize) -> usize {
    let most = LOGITS_BYTES / (vocabulary * size_of::<E>());
    let most = (most / TOKENS_MULTIPLE).max(1) * TOKENS_MULTIPLE;
    let chunks = tokens.div_ceil(most).max(1);
    tokens.div_ceil(chunks).next_multiple_of(TOKENS_MULTIPLE).min(tokens)
}

/// What the head reads for one chunk.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a, E> {
    /// H (tokens, C).
    pub hidden: &'a [E],
    /// W (V, C).
    pub table: &'a [E],
    /// Target ids (tokens).
    pub targets: &'a [u32],
    /// C.
    pub width: usize,
}

impl<E> Inputs<'_, E> {
    /// The numbers of tokens and of token ids.
    fn check(&self) -> (usize, usize) {
        let (tokens, vocabulary) = (self.targets.len(), self.table.len() / self.width);
        assert_eq!(self.hidden.len(), tokens * self.width, "H (tokens, C)");
        assert_eq!(self.table.len(), vocabulary * self.width, "W (V, C)");
        assert!(self.targets.iter().all(|&t| (t as usize) < vocabulary), "targets below V");
        (tokens, vocabulary)
    }
}

/// The logits of one chunk and what becomes of them.
#[derive(Debug)]
pub struct Workspace<E: Element> {
    /// (V, tokens); then dlogits.
    logits: Vec<E>,
    /// Per part of the vocabulary and token: maximum, and sum of exponentials relative to it.
    maxima: Vec<E::Wide>,
    sums: Vec<E::Wide>,
    /// Per token: log-sum-exp.
    log_sums: Vec<E::Wide>,
    /// Per token: the gradient of its target's logit.
    hits: Vec<E>,
    /// W as dH reads it, where it is kept between chunks; forward reads it as it is.
    table: Option<Panels<E>>,
}

impl<E: Element> Workspace<E> {
    /// Room for chunks of up to `tokens` tokens.
    pub fn new(tokens: usize, vocabulary: usize) -> Self {
        Self {
            logits: vec![E::ZERO; tokens * vocabulary],
            maxima: vec![E::Wide::ZERO; PARTS * tokens],
            sums: vec![E::Wide::ZERO; PARTS * tokens],
            log_sums: vec![E::Wide::ZERO; tokens],
            hits: vec![E::ZERO; tokens],
            table: None,
        }
    }

    /// Keeps the table (V, C) packed from one chunk to the next, until it expires.
    pub(crate) fn keep_table(&mut self, shape: (usize, usize)) {
        self.table = Some(Panels::new(Form::Backward, shape, E::kernel()));
    }

    /// The table changes: the next chunk packs it anew.
    pub(crate) fn expire(&mut self) {
        self.table.iter_mut().for_each(Panels::expire);
    }

    /// Bytes of a table that is kept packed.
    pub(crate) fn planned_table_bytes(shape: (usize, usize)) -> usize {
        Panels::<E>::planned_bytes(Form::Backward, shape)
    }

    /// The products over a chunk of so many tokens: logits, dH and dW.
    pub(crate) fn products(
        tokens: usize,
        (vocabulary, width): (usize, usize),
        is_table_kept: bool,
    ) -> [Extent; 3] {
        // As `Output::plain` stores them.
        let is_narrow = size_of::<E>() < size_of::<E::Wide>();
        let logits = Extent {
            shape: (vocabulary, tokens, width),
            left_is_rows: true,
            right_is_packed: false,
            is_narrow,
        };
        let dhidden = Extent {
            shape: (tokens, width, vocabulary),
            left_is_rows: false,
            right_is_packed: is_table_kept,
            is_narrow,
        };
        let dtable = Extent { shape: (vocabulary, width, tokens), is_narrow: false, ..logits };
        [logits, dhidden, dtable]
    }

    /// Bytes of a workspace, without making one.
    pub fn planned_bytes(tokens: usize, vocabulary: usize) -> usize {
        let (narrow, wide) = (tokens * (vocabulary + 1), tokens * (2 * PARTS + 1));
        narrow * size_of::<E>() + wide * size_of::<E::Wide>()
    }
}
