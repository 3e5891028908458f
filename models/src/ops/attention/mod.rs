//! Causal multi-head attention in blocks, with an online softmax and grouped queries.
//!
//! For each sequence and head, with q, k, v (T, D): S = q k^T / sqrt(D) for keys up to the query,
//! P = softmax(S), out = P v. Only blocks of [`BLOCK`] keys x [`BLOCK`] queries of S exist (Dao et
//! al., arXiv 2205.14135); each row keeps its log-sum-exp, from which backward recomputes P:
//!
//! - dv = P^T dout
//! - dS = P (dout v^T - the row sums of dout out)
//! - dq = dS k / sqrt(D), dk = dS^T q / sqrt(D)
//!
//! H query heads share K key and value heads, H / K neighbours each (Ainslie et al., arXiv
//! 2305.13245); dk and dv are summed over those. Rows of qkv (B, T, (H + 2 K) D) have the query
//! heads, then the key heads, then the value heads; out is (B, T, H D) and the log-sum-exps
//! (B, H, T). Scores, softmax and all sums are wide; P and dS are narrowed for their products.
//!
//! Blocks are kept with queries along the vectors, so no sum runs across a vector.

mod backward;
pub(crate) mod cuda;
mod forward;
mod head;
mod pack;
mod softmax;
mod workspace;

#[cfg(test)]
mod tests;

pub use backward::backward;
pub use forward::forward;
pub use workspace::Workspace;

/// Queries and keys of one block.
pub const BLOCK: usize = 64;

/// Dimensions of one attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// B.
    pub sequences: usize,
    /// T.
    pub tokens: usize,
    /// H.
    pub heads: usize,
    /// K, a divisor of H.
    pub key_value_heads: usize,
    /// D.
    pub head_width: usize,
}

impl Shape {
    /// Columns of out: H D.
    pub fn width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Columns of qkv: (H + 2 K) D.
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.key_value_heads) * self.head_width
    }

    /// Pairs of query and key that are computed over all sequences and heads: blocks up to the
    /// diagonal, those on it in full, so T + [`BLOCK`] over T + 1 times the causal pairs.
    pub fn pairs(&self) -> usize {
        let blocks = (0..self.tokens).step_by(BLOCK);
        let of_block = |first| BLOCK.min(self.tokens - first) * self.tokens.min(first + BLOCK);
        self.sequences * self.heads * blocks.map(of_block).sum::<usize>()
    }

    /// N = B T.
    fn rows(&self) -> usize {
        self.sequences * self.tokens
    }

    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.heads / self.key_value_heads
    }

    /// The groups, of all B K, that one of `threads` threads computes.
    fn groups_of(&self, thread: usize, threads: usize) -> std::ops::Range<usize> {
        let groups = self.sequences * self.key_value_heads;
        thread * groups / threads..(thread + 1) * groups / threads
    }

    fn check(&self, qkv: usize, output: usize, log_sums: usize) {
        assert!(self.heads.is_multiple_of(self.key_value_heads), "H a multiple of K in {self:?}");
        assert_eq!(qkv, self.rows() * self.qkv_width(), "qkv (B, T, (H + 2 K) D) of {self:?}");
        assert_eq!(output, self.rows() * self.width(), "output (B, T, H D) of {self:?}");
        assert_eq!(log_sums, self.rows() * self.heads, "log sums (B, H, T) of {self:?}");
    }
}
