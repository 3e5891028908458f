//! Dimensions of a model, which are the `[model]` section, and of a micro-batch.

mod keys;
mod llama;
mod validation;

use serde::{Deserialize, Serialize};

use keys::Keys;
pub use llama::{Llama, RopeScaling};

/// Model family: decides the kind of block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Family {
    /// GPT-2 and GPT-3: LayerNorm with bias, learned positions, GELU (tanh), tied head.
    Gpt,
    /// Llama 1 to 3: RMSNorm, RoPE, SwiGLU, grouped-query attention, no biases.
    Llama(Llama),
}

/// Dimensions of one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Keys", into = "Keys")]
pub struct ModelConfig {
    /// Kind of block.
    pub family: Family,
    /// L, number of blocks.
    pub layers: usize,
    /// C, width of the residual stream.
    pub width: usize,
    /// H, attention heads; D = C / H.
    pub heads: usize,
    /// F, width of the feed-forward layer (4 C in GPT-2 and GPT-3).
    pub feed_forward: usize,
    /// V, number of token ids.
    pub vocabulary: usize,
    /// Longest sequence in tokens: rows of GPT's position table.
    pub context: usize,
}

impl ModelConfig {
    /// D, width of one head.
    pub fn head_width(&self) -> usize {
        self.width / self.heads
    }

    /// K, heads of keys and values: H in the GPT family.
    pub fn key_value_heads(&self) -> usize {
        match self.family {
            Family::Gpt => self.heads,
            Family::Llama(llama) => llama.key_value_heads,
        }
    }

    /// (H + 2 K) D: queries, keys and values of one token.
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.key_value_heads()) * self.head_width()
    }

    /// Returns whether the head is the token table.
    pub fn is_tied(&self) -> bool {
        match self.family {
            Family::Gpt => true,
            Family::Llama(llama) => llama.tied,
        }
    }
}

/// Batch that an engine computes at a time: B sequences of T tokens each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroBatch {
    /// B.
    pub sequences: usize,
    /// T.
    pub tokens: usize,
}

impl MicroBatch {
    /// N = B T, tokens of all sequences.
    pub fn rows(self) -> usize {
        self.sequences * self.tokens
    }
}

#[cfg(test)]
mod tests;
