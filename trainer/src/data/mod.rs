//! Tokens for training and evaluation: their sources and their order.
//!
//! - [`synthetic`]: an endless stream generated from a seed, with a known entropy.
//! - Token files of llm.c, nanoGPT and Megatron-LM, memory-mapped; several form one stream.
//! - [`Locations`]: locations of named files; those of object stores are kept on the node.
//! - [`Prefetcher`]: micro-batches read ahead of time, in an order that does not depend on the
//!   number of ranks.
//! - [`tokenize()`] writes token files from text; [`inspect()`] describes a token file.

mod batches;
pub mod bench;
mod cache;
mod error;
mod file_kind;
mod locations;
mod mapped_file;
mod permutation;
pub mod prefetch;
mod random_tokens;
mod ranges;
mod sequences;
mod source;
pub mod synthetic;
#[cfg(test)]
mod tests;
mod text_head;
mod token_files;
pub mod tokenize;
mod windows;

pub use batches::Batches;
pub use cache::CacheOptions;
pub use error::DataError;
pub use locations::Locations;
pub use prefetch::{BatchPlan, MicroBatch, Prefetcher};
pub(crate) use random_tokens::fill_at_random;
pub use sequences::Sequences;
pub use source::Source;
pub use token_files::{Format, Inspection, TokenType, inspect};
pub use tokenize::{InputFormat, TokenizePlan, TokenizeReport, Vocabulary, tokenize};
