//! Common parts of all token file formats: formats, element types, and checks of fields and sizes.

use std::path::Path;

use serde::Serialize;

use crate::data::error::DataError;

/// Format of a token file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// llm.c: a header of 1024 bytes, then tokens.
    #[value(name = "llmc")]
    #[serde(rename = "llmc")]
    LlmC,
    /// nanoGPT: tokens and nothing else, uint16 where nothing else is said.
    Raw,
    /// Megatron-LM: tokens in `.bin`, lengths of documents in `.idx`.
    Megatron,
}

/// Number format of one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenType {
    /// 1 byte, unsigned.
    Uint8,
    /// 2 bytes, unsigned.
    Uint16,
    /// 4 bytes, signed; a negative id is an error.
    Int32,
    /// 4 bytes, unsigned.
    Uint32,
    /// 8 bytes, signed; a negative id is an error.
    Int64,
}

impl TokenType {
    /// Returns the size of one token, bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Uint8 => 1,
            Self::Uint16 => 2,
            Self::Int32 | Self::Uint32 => 4,
            Self::Int64 => 8,
        }
    }

    /// Returns the token of these bytes.
    pub(super) fn id(self, bytes: &[u8]) -> i64 {
        let unsigned = |id: Option<u32>| id.map_or(0, i64::from);
        match self {
            Self::Uint8 => unsigned(bytes.first().map(|byte| u32::from(*byte))),
            Self::Uint16 => unsigned(field(bytes, 0).map(|two| u16::from_le_bytes(two).into())),
            Self::Uint32 => unsigned(field(bytes, 0).map(u32::from_le_bytes)),
            Self::Int32 => field(bytes, 0).map_or(0, |four| i32::from_le_bytes(four).into()),
            Self::Int64 => field(bytes, 0).map_or(0, i64::from_le_bytes),
        }
    }
}

/// Format, type and number of the tokens of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::data) struct TokenLayout {
    pub(super) format: Format,
    pub(super) token_type: TokenType,
    /// Number of bytes before the first token.
    pub(super) header_bytes: usize,
    pub(in crate::data) tokens: u64,
    /// Number of documents; `None` where the format does not record it.
    pub(super) documents: Option<u64>,
}

/// Returns `N` bytes of a slice as an array; `None` past its end.
pub(super) fn field<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

/// Returns the 32-bit number at a position counted in such numbers.
pub(super) fn int(bytes: &[u8], index: usize) -> Option<u32> {
    field(bytes, 4 * index).map(u32::from_le_bytes)
}

/// Checks the size of a file; `reason` says why it is expected.
pub(super) fn check_size(
    path: &Path,
    found_bytes: u64,
    expected_bytes: u64,
    reason: &str,
) -> Result<(), DataError> {
    if found_bytes < expected_bytes {
        return Err(DataError::Truncated {
            path: path.to_owned(),
            expected_bytes,
            found_bytes,
            reason: reason.to_owned(),
        });
    }
    if found_bytes > expected_bytes {
        let expected = format!("the end of the file ({reason})");
        let found = format!("{} more bytes", found_bytes - expected_bytes);
        return Err(malformed(path, expected_bytes, expected, found));
    }
    Ok(())
}

/// Returns the error for a bad field, without a hint.
pub(super) fn malformed(path: &Path, offset: u64, expected: String, found: String) -> DataError {
    DataError::Malformed { path: path.to_owned(), offset, expected, found, hint: String::new() }
}
