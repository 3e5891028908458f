//! Tokens for training and evaluation: where they come from and in which order.
//!
//! - [`synthetic`]: an endless stream made from a seed, with a known entropy.
//! - Token files of llm.c, nanoGPT and Megatron-LM, memory-mapped; several are one stream.
//! - [`Prefetcher`]: micro-batches made ahead of time, in an order that does not depend on the
//!   number of ranks.
//! - [`tokenize()`] makes token files of text; [`inspect()`] says what a file is.

mod documents;
mod error;
pub mod format;
mod inspect;
mod mapped;
mod megatron;
mod order;
pub mod prefetch;
mod source;
pub mod synthetic;
#[cfg(test)]
mod tests;
mod token_file;
pub mod tokenize;
mod windows;
mod writer;

use std::fmt::Debug;

use serde::Serialize;

pub use error::DataError;
pub use format::{Format, TokenType};
pub use inspect::{Inspection, inspect};
pub use prefetch::{BatchPlan, MicroBatch, Prefetcher};
pub use source::Source;
pub use tokenize::{InputFormat, TokenizePlan, TokenizeReport, Vocabulary, tokenize};

/// Random access to sequences by a global index: the same global order at any world size.
pub trait Sequences: Send + Sync + Debug {
    /// Writes the T inputs and T targets of global sequence `index`. There is no last index: past
    /// the end of an epoch the next one begins, in a new order.
    fn fill(&self, index: u64, inputs: &mut [u32], targets: &mut [u32]);

    /// What these sequences are, for the record.
    fn describe(&self) -> Description;
}

/// What sequences are, for the record.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Description {
    /// `synthetic` or `files`.
    pub kind: &'static str,
    /// Sequences until they repeat; `None` if they never do.
    pub sequences_per_epoch: Option<u64>,
    /// Input tokens of an epoch; `None` if it never ends.
    pub tokens: Option<u64>,
    /// Smallest mean loss that any model can reach, nats per token, where it is known.
    pub entropy_floor_nats: Option<f64>,
    /// Digest of the token files, as in the workload id.
    pub digest: Option<String>,
}
