//! Header of llm.c, as its `dev/data/data_common.py` writes it.

use std::path::Path;

use super::format::{Format, TokenLayout, TokenType, check_size, int, malformed};
use crate::data::error::DataError;

/// Magic number of files for GPT-2, first int32 of the header.
pub(super) const MAGIC: u32 = 20_240_520;
/// Version that goes with [`MAGIC`].
pub(super) const VERSION: u32 = 1;
/// Size of the header.
pub(super) const HEADER_BYTES: usize = 1024;

const LLAMA_MAGIC: u32 = 20_240_801;
const LLAMA_VERSION: u32 = 7;

/// Returns whether a number is one of llm.c's magic numbers.
pub(super) fn is_magic(number: Option<u32>) -> bool {
    matches!(number, Some(MAGIC | LLAMA_MAGIC))
}

/// Parses the header and checks the size of the file.
///
/// # Errors
/// An unknown magic or version, a negative count, or a size that does not match the count.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<TokenLayout, DataError> {
    let header = |index| int(bytes, index).ok_or_else(|| short_header(path, bytes.len()));
    let (token_type, version) = match header(0)? {
        MAGIC => (TokenType::Uint16, VERSION),
        LLAMA_MAGIC => (TokenType::Uint32, LLAMA_VERSION),
        found => return Err(wrong_magic(path, found)),
    };
    if header(1)? != version {
        let expected = format!("version {version}");
        return Err(malformed(path, 4, expected, header(1)?.to_string()));
    }
    if bytes.len() < HEADER_BYTES {
        return Err(short_header(path, bytes.len()));
    }
    let tokens = header(2)?;
    if i32::try_from(tokens).is_err() {
        let found = (tokens as i32).to_string();
        return Err(malformed(path, 8, "a token count of at least 0".to_owned(), found));
    }
    let tokens = u64::from(tokens);
    let end = HEADER_BYTES as u64 + tokens * token_type.bytes() as u64;
    let reason = format!("the header counts {tokens} tokens");
    check_size(path, bytes.len() as u64, end, &reason)?;
    Ok(TokenLayout {
        format: Format::LlmC,
        token_type,
        header_bytes: HEADER_BYTES,
        tokens,
        documents: None,
    })
}

/// Returns the error for a header with another magic number.
pub(super) fn wrong_magic(path: &Path, found: u32) -> DataError {
    let expected = format!("the llm.c magic {MAGIC} (GPT-2) or {LLAMA_MAGIC} (llama-3)");
    malformed(path, 0, expected, found.to_string())
}

fn short_header(path: &Path, found: usize) -> DataError {
    DataError::Truncated {
        path: path.to_owned(),
        expected_bytes: HEADER_BYTES as u64,
        found_bytes: found as u64,
        reason: "the llm.c header".to_owned(),
    }
}
