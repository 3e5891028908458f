//! Raw tokens: uint16, as nanoGPT's `data/openwebtext/prepare.py` writes them, or as wide as the
//! user says. The format has no magic number, so files are refused that look like another kind of
//! file, or whose pattern is that of wider ids.

use std::path::Path;

use super::format::{Format, TokenLayout, TokenType, check_size, int, malformed};
use super::llmc;
use super::width_pattern::{self, Width};
use crate::data::error::DataError;
use crate::data::file_kind::FileKind;
use crate::data::text_head::is_text;

/// Interprets a file as raw tokens of `token_bytes` each; uint16 by default.
///
/// # Errors
/// The file looks like another kind, no width is given and its ids look wider, or its size is not a
/// multiple of a token's.
pub(super) fn parse(
    path: &Path,
    bytes: &[u8],
    token_bytes: Option<usize>,
) -> Result<TokenLayout, DataError> {
    if let Some(OtherKind { name, hint }) = other_kind(bytes, token_bytes) {
        let expected = "a token file (llm.c, nanoGPT uint16, or Megatron .bin with .idx)";
        return Err(DataError::Malformed {
            path: path.to_owned(),
            offset: 0,
            expected: expected.to_owned(),
            found: name.to_owned(),
            hint: format!("; {hint}"),
        });
    }
    if let Some(magic) = foreign_magic(bytes) {
        return Err(llmc::wrong_magic(path, magic));
    }
    if token_bytes.is_none()
        && let Some(width) = width_pattern::find(bytes)
    {
        return Err(other_width(path, &width));
    }
    let token_type = match token_bytes {
        Some(1) => TokenType::Uint8,
        Some(4) => TokenType::Uint32,
        Some(8) => TokenType::Int64,
        _ => TokenType::Uint16,
    };
    let width = token_type.bytes();
    check_size(path, bytes.len() as u64, bytes.len().max(width) as u64, "at least one token")?;
    if !bytes.len().is_multiple_of(width) {
        let reason = match token_bytes {
            None => "uint16, as in nanoGPT's format",
            Some(_) => "data.token_bytes",
        };
        let expected = format!("{width} bytes for each token ({reason})");
        let end = bytes.len() as u64;
        return Err(malformed(path, end, expected, format!("the end of {end} bytes")));
    }
    Ok(TokenLayout {
        format: Format::Raw,
        token_type,
        header_bytes: 0,
        tokens: (bytes.len() / width) as u64,
        documents: None,
    })
}

/// Advice for big-endian ids. Little-endian ids of 4 bytes look the same behind 2 bytes.
const BIG_ENDIAN_HINT: &str = "; write them little-endian, without a header";

/// Returns the error for a file whose ids look wider than uint16.
fn other_width(path: &Path, width: &Width) -> DataError {
    let Width { bytes, is_big_endian } = width;
    let (order, hint) = match is_big_endian {
        true => (" big-endian", BIG_ENDIAN_HINT.to_owned()),
        false => ("", format!("; set data.token_bytes={bytes} (--token-bytes {bytes})")),
    };
    DataError::Malformed {
        path: path.to_owned(),
        offset: 0,
        expected: "uint16 tokens, as in nanoGPT's format".to_owned(),
        found: format!("what looks like{order} ids of {bytes} bytes (upper halves are 0 or small)"),
        hint: format!("{hint}, or data.token_bytes=2 if its tokens are uint16 nevertheless"),
    }
}

/// Returns the first number of a file that has llm.c's header but not its magic: three numbers, of
/// which only the version may be 0, then zeros up to byte 1024. Real tokens may begin with any six
/// ids, but not with the same id 506 times after that.
fn foreign_magic(bytes: &[u8]) -> Option<u32> {
    let tail = bytes.get(12..llmc::HEADER_BYTES)?;
    let magic = int(bytes, 0)?;
    let version = int(bytes, 1)?;
    let tokens = int(bytes, 2)?;
    let is_header = magic != 0 && version <= 16 && tokens != 0 && tail.iter().all(|b| *b == 0);
    is_header.then_some(magic)
}

/// Kind that a file has instead, and advice.
struct OtherKind {
    name: &'static str,
    hint: &'static str,
}

fn other_kind(bytes: &[u8], token_bytes: Option<usize>) -> Option<OtherKind> {
    if let Some(kind) = FileKind::of(bytes) {
        return Some(OtherKind { name: kind.name, hint: kind.hint_for_tokens });
    }
    if llmc::is_magic(int(bytes, 0).map(u32::swap_bytes)) {
        let hint = "write them on a little-endian machine";
        return Some(OtherKind { name: "big-endian llm.c tokens", hint });
    }
    let hint = "convert it with `yardstick data tokenize`";
    let may_be_text = token_bytes == Some(1); // the ids of bytes are the text
    (!may_be_text && is_text(bytes)).then_some(OtherKind { name: "text", hint })
}
