//! Atomic writing of token files, as a whole or not at all.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::format::Format;
use super::{llmc, megatron};
use crate::data::error::DataError;
use record::files::{AtomicFile, IoError, Mode};

/// Writes uint16 tokens in one of the formats.
#[derive(Debug)]
pub(in crate::data) struct TokenWriter {
    format: Format,
    out: AtomicFile,
    tokens: u64,
    document_tokens: u64,
    lengths: Vec<i32>, // of documents; filled in every format, to count them
}

impl TokenWriter {
    /// Creates a file, which replaces the one at `path` in [`TokenWriter::finish`].
    pub(in crate::data) fn create(path: &Path, format: Format) -> Result<Self, DataError> {
        let index = path.with_extension("idx");
        if format == Format::Raw && index.exists() {
            let reason = format!(
                "with {} next to it, it would be read as a Megatron file; remove that or choose \
                 another name",
                index.display()
            );
            return Err(DataError::Unwritable { path: path.to_owned(), format: "raw", reason });
        }
        if format == Format::Megatron && index == path {
            let reason = "this is the name of its index; use the extension .bin".to_owned();
            return Err(DataError::Unwritable { path: index, format: "megatron", reason });
        }
        let mut out = AtomicFile::create(path, Mode::Umask)?;
        if format == Format::LlmC {
            out.write(&[0; llmc::HEADER_BYTES])?;
        }
        Ok(Self { format, out, tokens: 0, document_tokens: 0, lengths: Vec::new() })
    }

    /// Appends tokens to the current document.
    pub(in crate::data) fn push(&mut self, tokens: &[u16]) -> Result<(), DataError> {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        self.out.write(&bytes)?;
        self.tokens += tokens.len() as u64;
        self.document_tokens += tokens.len() as u64;
        if self.format != Format::Raw && self.tokens > i32::MAX as u64 {
            let reason = "more than 2147483647 tokens; split the input or write raw".to_owned();
            return Err(self.unwritable(reason));
        }
        Ok(())
    }

    /// Ends the current document.
    pub(in crate::data) fn end_document(&mut self) {
        self.lengths.push(i32::try_from(self.document_tokens).unwrap_or(i32::MAX));
        self.document_tokens = 0;
    }

    /// Returns the number of tokens so far.
    pub(in crate::data) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns the number of documents so far.
    pub(in crate::data) fn documents(&self) -> u64 {
        self.lengths.len() as u64
    }

    /// Completes the file and renames it to its final path.
    pub(in crate::data) fn finish(mut self) -> Result<(), DataError> {
        match self.format {
            Format::Raw => {}
            Format::LlmC => {
                self.out.rewind()?;
                for value in [llmc::MAGIC, llmc::VERSION, self.tokens as u32] {
                    self.out.write(&value.to_le_bytes())?;
                }
            }
            Format::Megatron => return self.finish_megatron(),
        }
        Ok(self.out.commit()?)
    }

    fn finish_megatron(self) -> Result<(), DataError> {
        let index_path = self.out.path().with_extension("idx");
        let mut index = AtomicFile::create(&index_path, Mode::Umask)?;
        megatron::write_index(&mut index, &self.lengths)?;
        // A kill between the two renames must not leave new tokens with an old index.
        match fs::remove_file(&index_path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(IoError::at(&index_path, "remove")(error).into());
            }
            _ => {}
        }
        self.out.commit()?;
        Ok(index.commit()?)
    }

    fn unwritable(&self, reason: String) -> DataError {
        let format = if self.format == Format::LlmC { "llmc" } else { "megatron" };
        DataError::Unwritable { path: self.out.path().to_owned(), format, reason }
    }
}
