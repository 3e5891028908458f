//! Causal multi-head attention in blocks, with an online softmax.
//!
//! For each sequence and head, with q, k, v (T, D): S = q k^T / sqrt(D) for keys up to the query,
//! P = softmax(S), out = P v. Only blocks of [`BLOCK`] keys x [`BLOCK`] queries of S exist (Dao et
//! al., arXiv 2205.14135); each row keeps its log-sum-exp, from which backward makes P again:
//!
//! - dv = P^T dout
//! - dS = P (dout v^T - the row sums of dout out)
//! - dq = dS k / sqrt(D), dk = dS^T q / sqrt(D)
//!
//! q, k and v are the thirds of the rows of qkv (B, T, 3 C), heads side by side in each; out is
//! (B, T, C) and the log-sum-exps (B, H, T). Blocks are kept with queries along the vectors, so no
//! sum runs across a vector and each operand is transposed once per block of queries.

mod backward;
mod forward;

pub use backward::backward;
pub use forward::forward;

use super::matmul::{Packs, product::NEAR};
use crate::ops::Float;

/// Queries and keys of one block.
pub const BLOCK: usize = 64;

// The left operands of its products are rows of q, k and v, or blocks whose columns are BLOCK
// apart: near enough never to be gathered, so that `Packs` need no room for that.
const _: () = assert!(BLOCK <= NEAR);

/// Dimensions of one attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// B.
    pub sequences: usize,
    /// T.
    pub tokens: usize,
    /// H.
    pub heads: usize,
    /// D.
    pub head_width: usize,
}

impl Shape {
    /// C = H D.
    fn width(&self) -> usize {
        self.heads * self.head_width
    }

    /// N = B T.
    fn rows(&self) -> usize {
        self.sequences * self.tokens
    }

    /// Where sequence and head number `head` of B x H starts: row of the buffers, and column of
    /// each third.
    fn corner(&self, head: usize) -> (usize, usize) {
        (head / self.heads * self.tokens, head % self.heads * self.head_width)
    }

    /// The heads that one of `parts` tasks takes.
    fn heads_of(&self, part: usize, parts: usize) -> std::ops::Range<usize> {
        let heads = self.sequences * self.heads;
        part * heads / parts..(part + 1) * heads / parts
    }
}

/// Room for the blocks of every thread.
///
/// The number of threads decides only how work is divided: results are the same for all.
#[derive(Debug)]
pub struct Workspace<T> {
    parts: Vec<Scratch<T>>,
}

/// One thread's blocks.
#[derive(Debug)]
struct Scratch<T> {
    packs: Packs<T>,
    /// q^T / sqrt(D) and dout^T (D, BLOCK).
    query: Vec<T>,
    output: Vec<T>,
    /// S^T, then P^T; and dS^T (BLOCK keys, BLOCK queries).
    scores: Vec<[T; BLOCK]>,
    changes: Vec<[T; BLOCK]>,
}

impl<T: Float> Workspace<T> {
    /// Room for this many threads (at least 1) at this D.
    pub fn new(threads: usize, head_width: usize) -> Self {
        let side = head_width.max(BLOCK);
        let scratch = || Scratch {
            packs: Packs::new(0, side, side),
            query: vec![T::ZERO; head_width * BLOCK],
            output: vec![T::ZERO; head_width * BLOCK],
            scores: vec![[T::ZERO; BLOCK]; BLOCK],
            changes: vec![[T::ZERO; BLOCK]; BLOCK],
        };
        Self { parts: (0..threads.max(1)).map(|_| scratch()).collect() }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        let elements = |part: &Scratch<T>| part.query.len() * 2 + BLOCK * BLOCK * 2;
        let bytes = |part| elements(part) * size_of::<T>() + part.packs.bytes();
        self.parts.iter().map(bytes).sum()
    }
}

#[cfg(test)]
mod tests;
