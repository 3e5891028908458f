//! Dimensions of a model: the `[model]` section.

mod keys;
mod llama;

use serde::{Deserialize, Serialize};

use crate::{Error, bounds};
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

    /// Whether the head is the token table.
    pub fn is_tied(&self) -> bool {
        match self.family {
            Family::Gpt => true,
            Family::Llama(llama) => llama.tied,
        }
    }

    /// Checks a micro-batch of B = `micro_sequences` and T = `sequence_tokens`.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the key when B is 0, T is not in 1 to the context, or both are
    /// larger than any memory.
    pub fn check_batch(&self, micro_sequences: usize, sequence_tokens: usize) -> Result<(), Error> {
        if micro_sequences == 0 {
            return Err(Error::invalid("batch.micro_sequences", 0, "at least 1"));
        }
        if !(1..=self.context).contains(&sequence_tokens) {
            let expected = format!("1 to model.context = {}", self.context);
            return Err(Error::invalid("batch.sequence_tokens", sequence_tokens, expected));
        }
        bounds::check_batch(self, micro_sequences, sequence_tokens)
    }

    /// Checks every dimension.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the key.
    pub fn validate(&self) -> Result<(), Error> {
        let positive = [
            ("model.layers", self.layers),
            ("model.width", self.width),
            ("model.heads", self.heads),
            ("model.feed_forward", self.feed_forward),
            ("model.context", self.context),
        ];
        for (key, value) in positive {
            if value == 0 {
                return Err(Error::invalid(key, value, "a number of at least 1"));
            }
        }
        if self.vocabulary < 2 {
            return Err(Error::invalid("model.vocabulary", self.vocabulary, "at least 2"));
        }
        if !self.width.is_multiple_of(self.heads) {
            let expected = format!("a divisor of model.width = {}", self.width);
            return Err(Error::invalid("model.heads", self.heads, expected));
        }
        bounds::check_model(self)?;
        match self.family {
            Family::Gpt => Ok(()),
            Family::Llama(llama) => llama.validate(self.heads, self.head_width()),
        }
    }

    /// Refuses what the fused engine does not compute.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for the Llama family.
    pub fn require_fused(&self) -> Result<(), Error> {
        match self.family {
            Family::Gpt => Ok(()),
            Family::Llama(_) => Err(Error::Unsupported {
                what: "model.family = llama with run.engine = fused".to_owned(),
                hint: "--engine candle trains it".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
