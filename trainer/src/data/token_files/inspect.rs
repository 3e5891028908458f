//! `yardstick data inspect`: the format, size and first tokens of a token file.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use comfy_table::{Table, presets::NOTHING};
use record::text::is_remote;
use serde::Serialize;

use super::format::{Format, TokenType};
use super::token_file::TokenFile;
use crate::data::error::DataError;
use crate::data::locations::{LocalFile, Locations};

/// Number of leading tokens that are shown.
const FIRST_TOKENS: u64 = 16;

/// Description of a token file. `Display` is a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inspection {
    /// File that holds the tokens.
    pub path: PathBuf,
    /// Format of the file.
    pub format: Format,
    /// Number format of a token.
    pub token_type: TokenType,
    /// Size of the file, bytes.
    pub size_bytes: u64,
    /// Bytes before the first token.
    pub header_bytes: u64,
    /// Number of tokens.
    pub tokens: u64,
    /// Number of documents, where the format records it.
    pub documents: Option<u64>,
    /// Largest token id; a model's vocabulary must be larger. `None` without tokens.
    pub largest_token: Option<u32>,
    /// BLAKE3 of the file, 64 hexadecimal digits.
    pub digest: String,
    /// First tokens.
    pub first_tokens: Vec<u32>,
    /// First tokens as text, decoded by the vocabulary that the file's largest id suggests: bytes
    /// up to 255, GPT-2 up to 50256, otherwise `None`.
    pub first_text: Option<String>,
}

/// Reads a whole token file, at a path or a URL of an object store, and describes it. A file
/// without a header has tokens of `token_bytes` each.
///
/// # Errors
/// Those of a run that uses the file.
pub fn inspect(path: &Path, token_bytes: Option<usize>) -> Result<Inspection, DataError> {
    let url = path.to_str().filter(|name| is_remote(name)).map(str::to_owned);
    Locations::default().open_files(url.as_slice(), |downloaded| {
        inspect_local(downloaded.first().unwrap_or(&LocalFile::new(path)), token_bytes)
    })
}

fn inspect_local(file: &LocalFile, token_bytes: Option<usize>) -> Result<Inspection, DataError> {
    let file = TokenFile::open(file, token_bytes)?;
    let scan = file.scan()?;
    let layout = file.layout;
    let mut first_tokens = vec![0; layout.tokens.min(FIRST_TOKENS) as usize];
    file.read(0, &mut first_tokens);
    Ok(Inspection {
        format: layout.format,
        token_type: layout.token_type,
        size_bytes: file.size_bytes(),
        header_bytes: layout.header_bytes as u64,
        tokens: layout.tokens,
        documents: layout.documents,
        largest_token: scan.largest,
        digest: scan.digest,
        first_text: first_text(&first_tokens, scan.largest.unwrap_or(0)),
        first_tokens,
        path: file.name,
    })
}

fn first_text(tokens: &[u32], largest: u32) -> Option<String> {
    let bytes = match largest {
        ..256 => tokens.iter().map(|token| *token as u8).collect(),
        256..50_257 => tiktoken_rs::r50k_base_singleton().decode_bytes(tokens).ok()?,
        _ => return None,
    };
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(NOTHING);
        let not_recorded = || "not recorded in this format".to_owned();
        let rows = [
            ("file", self.path.display().to_string()),
            ("format", self.format_name()),
            ("size", format!("{} bytes, {} before the tokens", self.size_bytes, self.header_bytes)),
            ("tokens", self.tokens.to_string()),
            ("documents", self.documents.map_or_else(not_recorded, |count| count.to_string())),
            ("largest id", self.largest_token.map_or("none".to_owned(), |id| id.to_string())),
            ("first ids", format!("{:?}", self.first_tokens)),
            ("first text", self.first_text.as_ref().map_or("-".to_owned(), |t| format!("{t:?}"))),
            ("blake3", self.digest.clone()),
        ];
        for (name, value) in rows {
            table.add_row([name.to_owned(), value]);
        }
        write!(f, "{}", table.trim_fmt())
    }
}

impl Inspection {
    fn format_name(&self) -> String {
        let format = match self.format {
            Format::LlmC => "llm.c",
            Format::Raw => "raw (nanoGPT, no magic number)",
            Format::Megatron => "Megatron .bin with .idx",
        };
        format!("{format}, {:?} tokens", self.token_type).to_lowercase()
    }
}
