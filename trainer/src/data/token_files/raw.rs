//! Raw uint16 tokens, as nanoGPT's `data/openwebtext/prepare.py` writes them. The format has no
//! magic number, so this refuses what looks like another kind of file.

use std::path::Path;

use super::format::{Format, TokenLayout, TokenType, check_size, int, malformed};
use super::llmc;
use crate::data::error::DataError;

/// Interprets a file as raw uint16 tokens.
///
/// # Errors
/// The file looks like another kind, or its size is odd.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<TokenLayout, DataError> {
    if let Some(other) = other_kind(bytes) {
        let expected = "a token file (llm.c, nanoGPT uint16, or Megatron .bin with .idx)";
        return Err(DataError::Malformed {
            path: path.to_owned(),
            offset: 0,
            expected: expected.to_owned(),
            found: other.name.to_owned(),
            hint: format!("; {}", other.hint),
        });
    }
    if let Some(magic) = foreign_magic(bytes) {
        return Err(llmc::wrong_magic(path, magic));
    }
    check_size(path, bytes.len() as u64, bytes.len().max(2) as u64, "at least one token")?;
    if !bytes.len().is_multiple_of(2) {
        let expected = "2 bytes for each token (uint16, as in nanoGPT's format)".to_owned();
        let end = bytes.len() as u64;
        return Err(malformed(path, end, expected, format!("the end of {end} bytes")));
    }
    Ok(TokenLayout {
        format: Format::Raw,
        token_type: TokenType::Uint16,
        header_bytes: 0,
        tokens: bytes.len() as u64 / 2,
        documents: None,
    })
}

/// The first number of a file that has llm.c's header but not its magic: three numbers, of which
/// only the version may be 0, then zeros up to byte 1024. Real tokens may begin with any six ids,
/// but not with the same id 506 times after that.
fn foreign_magic(bytes: &[u8]) -> Option<u32> {
    let tail = bytes.get(12..llmc::HEADER_BYTES)?;
    let magic = int(bytes, 0)?;
    let version = int(bytes, 1)?;
    let tokens = int(bytes, 2)?;
    let is_header = magic != 0 && version <= 16 && tokens != 0 && tail.iter().all(|b| *b == 0);
    is_header.then_some(magic)
}

/// A kind of file that users name by mistake.
struct OtherKind {
    name: &'static str,
    /// What to do instead.
    hint: &'static str,
}

/// First bytes of other kinds of files.
const MAGICS: [(&[u8], OtherKind); 7] = [
    (b"\x1f\x8b", OtherKind { name: "a gzip file", hint: "unpack it first" }),
    (b"\x28\xb5\x2f\xfd", OtherKind { name: "a zstd file", hint: "unpack it first" }),
    (b"PK\x03\x04", OtherKind { name: "a zip file", hint: "unpack it first" }),
    (
        b"\x93NUMPY",
        OtherKind { name: "a NumPy array", hint: "write only its elements, with ndarray.tofile" },
    ),
    (
        b"PAR1",
        OtherKind {
            name: "a Parquet file",
            hint: "export its text as JSONL and use `yardstick data tokenize`",
        },
    ),
    (b"GGUF", OtherKind { name: "a GGUF model", hint: "name a token file" }),
    (
        b"MMIDIDX",
        OtherKind { name: "a Megatron index", hint: "name the .bin file of the same name" },
    ),
];

fn other_kind(bytes: &[u8]) -> Option<&'static OtherKind> {
    const BIG_ENDIAN: OtherKind = OtherKind {
        name: "big-endian llm.c tokens",
        hint: "write them on a little-endian machine",
    };
    const TEXT: OtherKind =
        OtherKind { name: "text", hint: "convert it with `yardstick data tokenize`" };
    if let Some((_, other)) = MAGICS.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Some(other);
    }
    if llmc::is_magic(int(bytes, 0).map(u32::swap_bytes)) {
        return Some(&BIG_ENDIAN);
    }
    let head = &bytes[..bytes.len().min(1024)];
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~');
    (head.len() >= 64 && head.iter().all(is_text)).then_some(&TEXT)
}
