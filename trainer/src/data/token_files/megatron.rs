//! Index file of Megatron-LM, `.idx`: where documents begin in the `.bin` file of the same name.
//!
//! Layout, all little-endian (Megatron-LM `megatron/core/datasets/indexed_dataset.py`): magic
//! `MMIDIDX\0\0`, uint64 version 1, uint8 code of the token type, uint64 number of sequences S,
//! uint64 number of document marks D, S x int32 lengths in tokens, S x int64 byte offsets in the
//! `.bin` file, D x int64 document marks (sequence at which each document begins, then S), and
//! optionally S x int8 modes, which we skip. Documents are read as one stream.

use std::path::Path;

use super::format::{Format, TokenLayout, TokenType, check_size, field, malformed};
use crate::data::error::DataError;
use record::files::AtomicFile;
use record::files::IoError;

/// First bytes of an index.
const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
/// Only supported version.
const VERSION: u64 = 1;
/// Code of uint16 tokens.
const UINT16: u8 = 8;
/// Bytes before the tables.
const HEADER_BYTES: usize = 34;

/// Index of a token file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Index<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    token_type: TokenType,
    sequences: usize,
    marks: usize,
}

impl<'a> Index<'a> {
    /// Parses the header and checks the size.
    ///
    /// # Errors
    /// [`DataError::Malformed`] or [`DataError::Truncated`], naming the index file and offset.
    pub(super) fn parse(path: &'a Path, bytes: &'a [u8]) -> Result<Self, DataError> {
        if field::<9>(bytes, 0).as_ref() != Some(MAGIC) {
            let head = bytes[..bytes.len().min(9)].escape_ascii();
            let expected = "the Megatron magic MMIDIDX\\x00\\x00".to_owned();
            return Err(malformed(path, 0, expected, format!("\"{head}\"")));
        }
        let short = || DataError::Truncated {
            path: path.to_owned(),
            expected_bytes: HEADER_BYTES as u64,
            found_bytes: bytes.len() as u64,
            reason: "the header of a Megatron index".to_owned(),
        };
        let number = |offset| field(bytes, offset).map(u64::from_le_bytes).ok_or_else(short);
        let version = number(9)?;
        let code = *bytes.get(17).ok_or_else(short)?;
        let sequences = number(18)?;
        let marks = number(26)?;
        if version != VERSION {
            return Err(malformed(path, 9, "version 1".to_owned(), version.to_string()));
        }
        let token_type = token_type(path, code)?;
        Self::check_tables(path, bytes.len() as u64, sequences, marks)?;
        // Both fit: they are smaller than the file.
        let sequences = sequences as usize;
        let marks = marks as usize;
        Ok(Self { path, bytes, token_type, sequences, marks })
    }

    fn check_tables(path: &Path, size: u64, sequences: u64, marks: u64) -> Result<(), DataError> {
        let reason = format!("{sequences} sequences and {marks} document marks");
        let tables = sequences.checked_mul(12).zip(marks.checked_mul(8));
        let end = tables.and_then(|(a, b)| a.checked_add(b)?.checked_add(HEADER_BYTES as u64));
        let end = end.unwrap_or(u64::MAX); // larger than any file
        if end.checked_add(sequences) == Some(size) {
            return Ok(()); // has modes
        }
        check_size(path, size, end, &reason)
    }

    /// Checks the tables against each other and against the size of the token file.
    ///
    /// # Errors
    /// [`DataError::Malformed`] for an entry that Megatron would not write, or a token file of
    /// another size.
    pub(super) fn layout(&self, bin: &Path, bin_bytes: u64) -> Result<TokenLayout, DataError> {
        let width = self.token_type.bytes() as u64;
        let lengths = HEADER_BYTES;
        let offsets = lengths + 4 * self.sequences;
        let mut tokens = 0_u64;
        for sequence in 0..self.sequences {
            let at = lengths + 4 * sequence;
            let length = self.int(at, 4)?;
            let Ok(length) = u64::try_from(length) else {
                return Err(self.wrong(at, "a length of at least 0", length));
            };
            let at = offsets + 8 * sequence;
            let offset = self.int(at, 8)?;
            if u64::try_from(offset) != Ok(tokens * width) {
                let expected = format!("byte offset {} (sequences are contiguous)", tokens * width);
                return Err(self.wrong(at, &expected, offset));
            }
            tokens += length; // cannot overflow: the offset just checked is below 2^63
        }
        self.check_marks(offsets + 8 * self.sequences)?;
        let reason = format!("{} counts {tokens} tokens", self.path.display());
        check_size(bin, bin_bytes, tokens * width, &reason)?;
        Ok(TokenLayout {
            format: Format::Megatron,
            token_type: self.token_type,
            header_bytes: 0,
            tokens,
            documents: Some(self.marks as u64 - 1),
        })
    }

    /// Checks that document marks rise from 0 to the number of sequences.
    fn check_marks(&self, start: usize) -> Result<(), DataError> {
        if self.marks == 0 {
            return Err(self.wrong(26, "at least 1 document mark", 0));
        }
        let mut previous = 0;
        for mark in 0..self.marks {
            let at = start + 8 * mark;
            let found = self.int(at, 8)?;
            let lowest = if mark + 1 == self.marks { self.sequences as i64 } else { previous };
            let highest = if mark == 0 { 0 } else { self.sequences as i64 };
            if !(lowest..=highest).contains(&found) {
                let expected = format!("a document mark from {lowest} to {highest}");
                return Err(self.wrong(at, &expected, found));
            }
            previous = found;
        }
        Ok(())
    }

    fn int(&self, offset: usize, width: usize) -> Result<i64, DataError> {
        let value = if width == 4 {
            field(self.bytes, offset).map(|bytes| i64::from(i32::from_le_bytes(bytes)))
        } else {
            field(self.bytes, offset).map(i64::from_le_bytes)
        };
        value.ok_or_else(|| self.wrong(offset, "a table entry", 0))
    }

    fn wrong(&self, offset: usize, expected: &str, found: i64) -> DataError {
        malformed(self.path, offset as u64, expected.to_owned(), found.to_string())
    }
}

/// Writes an index in which each document is one sequence of uint16 tokens.
pub(super) fn write_index(index: &mut AtomicFile, lengths: &[i32]) -> Result<(), IoError> {
    let documents = lengths.len() as u64;
    index.write(MAGIC)?;
    index.write(&VERSION.to_le_bytes())?;
    index.write(&[UINT16])?;
    index.write(&documents.to_le_bytes())?;
    index.write(&(documents + 1).to_le_bytes())?;
    for length in lengths {
        index.write(&length.to_le_bytes())?;
    }
    let mut offset = 0_i64;
    for length in lengths {
        index.write(&offset.to_le_bytes())?;
        offset += 2 * i64::from(*length);
    }
    for mark in 0..=documents {
        index.write(&mark.to_le_bytes())?;
    }
    Ok(())
}

fn token_type(path: &Path, code: u8) -> Result<TokenType, DataError> {
    match code {
        1 => Ok(TokenType::Uint8),
        4 => Ok(TokenType::Int32),
        5 => Ok(TokenType::Int64),
        UINT16 => Ok(TokenType::Uint16),
        _ => {
            let names = ["int8", "int16", "float64", "float32"];
            let at = [2, 3, 6, 7].iter().position(|known| *known == code);
            let name = at.map_or("unknown", |at| names[at]);
            let expected =
                "token type code 1 (uint8), 4 (int32), 5 (int64) or 8 (uint16)".to_owned();
            Err(malformed(path, 17, expected, format!("{code} ({name})")))
        }
    }
}
