//! What a token file is: formats, element types, and how they are told apart.
//!
//! | format | bytes |
//! |---|---|
//! | llm.c | 256 x int32 header (magic 20240520, version 1, tokens), then uint16 tokens |
//! | llm.c llama-3 | the same with magic 20240801, version 7 and uint32 tokens |
//! | Megatron | tokens only, with an `.idx` file beside it that has the type |
//! | nanoGPT | tokens only, uint16 |
//!
//! All numbers are little-endian. Sources: llm.c `dev/data/data_common.py`, nanoGPT
//! `data/openwebtext/prepare.py`, Megatron-LM `megatron/core/datasets/indexed_dataset.py`.
//! nanoGPT's format has no mark of its own: it is what a file is taken for when it has no llm.c
//! magic and no index, unless it looks like something else.

use std::path::Path;

use serde::Serialize;

use super::DataError;

/// Magic number of llm.c token files for GPT-2, first int32 of the header.
pub(super) const LLMC_MAGIC: u32 = 20_240_520;
/// Version that goes with [`LLMC_MAGIC`].
pub(super) const LLMC_VERSION: u32 = 1;
const LLMC_LLAMA_MAGIC: u32 = 20_240_801;
const LLMC_LLAMA_VERSION: u32 = 7;
/// Size of llm.c's header.
pub(super) const LLMC_HEADER_BYTES: usize = 1024;

/// Family of a token file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// llm.c: a header of 1024 bytes, then tokens.
    #[value(name = "llmc")]
    #[serde(rename = "llmc")]
    LlmC,
    /// nanoGPT: uint16 tokens and nothing else.
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
}

impl TokenType {
    /// Size of one token, bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Uint8 => 1,
            Self::Uint16 => 2,
            Self::Int32 | Self::Uint32 => 4,
        }
    }
}

/// Where the tokens of a file lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) format: Format,
    pub(super) token_type: TokenType,
    pub(super) header_bytes: usize,
    pub(super) tokens: u64,
    pub(super) documents: Option<u64>,
}

/// `N` bytes of a slice as an array, if they are there.
pub(super) fn field<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

fn int(bytes: &[u8], index: usize) -> Option<u32> {
    field(bytes, 4 * index).map(u32::from_le_bytes)
}

/// Whether the first bytes are those of an llm.c token file.
pub(super) fn is_llmc(bytes: &[u8]) -> bool {
    matches!(int(bytes, 0), Some(LLMC_MAGIC | LLMC_LLAMA_MAGIC))
}

/// Reads llm.c's header.
///
/// # Errors
/// A wrong version, a negative count, or a size that does not agree with the count.
pub(super) fn llmc(path: &Path, bytes: &[u8]) -> Result<Layout, DataError> {
    let header = |index| int(bytes, index).ok_or_else(|| short_header(path, bytes.len()));
    let (token_type, version) = match header(0)? {
        LLMC_MAGIC => (TokenType::Uint16, LLMC_VERSION),
        LLMC_LLAMA_MAGIC => (TokenType::Uint32, LLMC_LLAMA_VERSION),
        found => return Err(wrong_magic(path, found)),
    };
    if header(1)? != version {
        let expected = format!("version {version}");
        return Err(malformed(path, 4, expected, header(1)?.to_string()));
    }
    if bytes.len() < LLMC_HEADER_BYTES {
        return Err(short_header(path, bytes.len()));
    }
    let tokens = header(2)?;
    if i32::try_from(tokens).is_err() {
        let found = (tokens as i32).to_string();
        return Err(malformed(path, 8, "a token count of at least 0".to_owned(), found));
    }
    let layout = Layout {
        format: Format::LlmC,
        token_type,
        header_bytes: LLMC_HEADER_BYTES,
        tokens: u64::from(tokens),
        documents: None,
    };
    let end = LLMC_HEADER_BYTES as u64 + layout.tokens * token_type.bytes() as u64;
    check_size(path, bytes.len() as u64, end, &format!("the header says {tokens} tokens"))?;
    Ok(layout)
}

/// Takes a file without a mark for raw uint16 tokens, unless it looks like something else.
///
/// # Errors
/// The bytes are those of another kind of file, or of odd length.
pub(super) fn raw(path: &Path, bytes: &[u8]) -> Result<Layout, DataError> {
    if let Some((found, hint)) = something_else(bytes) {
        let expected = "a token file (llm.c, nanoGPT uint16, or Megatron .bin with .idx)";
        return Err(DataError::Malformed {
            path: path.to_owned(),
            offset: 0,
            expected: expected.to_owned(),
            found: found.to_owned(),
            hint: format!("; {hint}"),
        });
    }
    if let Some(magic) = foreign_magic(bytes) {
        return Err(wrong_magic(path, magic));
    }
    check_size(path, bytes.len() as u64, bytes.len().max(2) as u64, "at least one token")?;
    if !bytes.len().is_multiple_of(2) {
        let expected = "2 bytes for each token (uint16, as in nanoGPT's format)".to_owned();
        let end = bytes.len() as u64;
        return Err(malformed(path, end, expected, format!("the end of {end} bytes")));
    }
    Ok(Layout {
        format: Format::Raw,
        token_type: TokenType::Uint16,
        header_bytes: 0,
        tokens: bytes.len() as u64 / 2,
        documents: None,
    })
}

/// The first number of what has llm.c's header but not its magic: three numbers, of which only the
/// version may be 0, then zeros for the rest of 1024 bytes. Real tokens may begin with any six ids,
/// but 506 times the same one does not follow.
fn foreign_magic(bytes: &[u8]) -> Option<u32> {
    let tail = bytes.get(12..LLMC_HEADER_BYTES)?;
    let (magic, version, tokens) = (int(bytes, 0)?, int(bytes, 1)?, int(bytes, 2)?);
    let is_header = magic != 0 && version <= 16 && tokens != 0 && tail.iter().all(|b| *b == 0);
    is_header.then_some(magic)
}

/// Files that people name by mistake: what it is, and what to do.
fn something_else(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    const MARKS: [(&[u8], &str, &str); 7] = [
        (b"\x1f\x8b", "a gzip file", "unpack it first"),
        (b"\x28\xb5\x2f\xfd", "a zstd file", "unpack it first"),
        (b"PK\x03\x04", "a zip file", "unpack it first"),
        (b"\x93NUMPY", "a NumPy array", "write its tokens alone, with ndarray.tofile"),
        (b"PAR1", "a Parquet file", "export its text as JSONL and use `yardstick data tokenize`"),
        (b"GGUF", "a model", "name a file of tokens"),
        (b"MMIDIDX", "a Megatron index", "name the .bin file beside it"),
    ];
    if let Some((_, what, hint)) = MARKS.iter().find(|(mark, ..)| bytes.starts_with(mark)) {
        return Some((what, hint));
    }
    let swapped = int(bytes, 0).map(u32::swap_bytes);
    if matches!(swapped, Some(LLMC_MAGIC | LLMC_LLAMA_MAGIC)) {
        return Some(("big-endian llm.c tokens", "write them on a little-endian machine"));
    }
    let head = &bytes[..bytes.len().min(1024)];
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~');
    if head.len() >= 64 && head.iter().all(is_text) {
        return Some(("text", "make tokens of it with `yardstick data tokenize`"));
    }
    None
}

/// The size of a file against what its header says.
pub(super) fn check_size(
    path: &Path,
    found_bytes: u64,
    expected_bytes: u64,
    reason: &str,
) -> Result<(), DataError> {
    if found_bytes < expected_bytes {
        let (path, reason) = (path.to_owned(), reason.to_owned());
        return Err(DataError::Truncated { path, expected_bytes, found_bytes, reason });
    }
    if found_bytes > expected_bytes {
        let expected = format!("the end of the file ({reason})");
        let found = format!("{} more bytes", found_bytes - expected_bytes);
        return Err(malformed(path, expected_bytes, expected, found));
    }
    Ok(())
}

/// A field that is not what it should be, without a hint.
pub(super) fn malformed(path: &Path, offset: u64, expected: String, found: String) -> DataError {
    DataError::Malformed { path: path.to_owned(), offset, expected, found, hint: String::new() }
}

fn wrong_magic(path: &Path, found: u32) -> DataError {
    let expected = format!("the llm.c magic {LLMC_MAGIC} (GPT-2) or {LLMC_LLAMA_MAGIC} (llama-3)");
    malformed(path, 0, expected, found.to_string())
}

fn short_header(path: &Path, found: usize) -> DataError {
    DataError::Truncated {
        path: path.to_owned(),
        expected_bytes: LLMC_HEADER_BYTES as u64,
        found_bytes: found as u64,
        reason: "the llm.c header".to_owned(),
    }
}
