//! Token files: their formats, reading them through memory maps, and writing them.
//!
//! | format | content |
//! |---|---|
//! | llm.c | 256 x int32 header (magic 20240520, version 1, tokens), then uint16 tokens |
//! | llm.c llama-3 | the same with magic 20240801, version 7 and uint32 tokens |
//! | Megatron | tokens only; the `.idx` file next to it has their type |
//! | nanoGPT | tokens only, uint16, or as wide as the user says |
//!
//! All numbers are little-endian. nanoGPT's format has no magic number: a file is read as nanoGPT's
//! if it has neither llm.c's magic nor an index and does not look like another kind of file.

mod format;
mod inspect;
mod llmc;
mod megatron;
mod raw;
mod stream;
mod token_file;
mod width_pattern;
mod writer;

pub use format::{Format, TokenType};
pub use inspect::{Inspection, inspect};
pub(super) use stream::TokenStream;
#[cfg(test)]
pub(super) use token_file::TokenFile;
pub(super) use writer::TokenWriter;
