//! Dimensions of a model: the `[model]` section.

use serde::{Deserialize, Serialize};

use crate::{Error, bounds};

/// Model family: decides the kind of block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// GPT-2 and GPT-3: LayerNorm with bias, learned positions, GELU (tanh), tied head.
    Gpt,
}

/// Dimensions of one model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// Longest sequence in tokens: rows of the position table.
    pub context: usize,
}

impl ModelConfig {
    /// D, width of one head.
    pub fn head_width(&self) -> usize {
        self.width / self.heads
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
        bounds::check_model(self)
    }
}
