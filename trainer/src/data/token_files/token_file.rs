//! Token file of any format: opening, scanning and reading it.

use std::path::PathBuf;

use rayon::prelude::*;

use super::format::{TokenLayout, TokenType, int};
use super::megatron::Index;
use super::{llmc, raw};
use crate::data::error::DataError;
use crate::data::locations::{LocalFile, tokens_of};
use crate::data::mapped_file::MappedFile;

/// Bytes hashed and then checked at a time, so that the second pass reads from cache.
const SCAN_PIECE_BYTES: usize = 8 << 20;

/// Memory-mapped token file.
#[derive(Debug)]
pub(in crate::data) struct TokenFile {
    /// Path or download URL, for messages.
    pub(super) name: PathBuf,
    pub(in crate::data) layout: TokenLayout,
    bytes: MappedFile,
    /// Digest of the download: see [`LocalFile::digest`].
    downloaded: Option<String>,
}

/// Result of reading every byte of a token file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::data) struct Scan {
    /// BLAKE3 of the whole file, 64 hexadecimal digits, as `b3sum` prints it.
    pub(super) digest: String,
    /// Largest token id; `None` in a file without tokens.
    pub(in crate::data) largest: Option<u32>,
}

impl TokenFile {
    /// Opens a token file and checks everything but the tokens themselves.
    ///
    /// llm.c files are recognised by their magic, Megatron files by the `.idx` file next to them
    /// (the path may also be that of the `.idx`); anything else has tokens of `token_bytes` each,
    /// or nanoGPT's uint16.
    pub(in crate::data) fn open(
        file: &LocalFile,
        token_bytes: Option<usize>,
    ) -> Result<Self, DataError> {
        let path = tokens_of(&file.path);
        let name = tokens_of(&file.name);
        let bytes = MappedFile::open(&path)?;
        let index_path = path.with_extension("idx");
        let layout = if llmc::is_magic(int(&bytes, 0)) {
            llmc::parse(&name, &bytes)?
        } else if index_path.exists() {
            let index = MappedFile::open(&index_path)?;
            let index_name = name.with_extension("idx");
            Index::parse(&index_name, &index)?.layout(&name, bytes.len() as u64)?
        } else {
            raw::parse(&name, &bytes, token_bytes)?
        };
        Ok(Self { name, layout, bytes, downloaded: file.digest.clone() })
    }

    /// Returns the size of the file, bytes.
    pub(super) fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Copies tokens from position `start`, as many as `out` holds.
    ///
    /// # Panics
    /// If the range is not inside the file.
    pub(in crate::data) fn read(&self, start: u64, out: &mut [u32]) {
        let width = self.layout.token_type.bytes();
        let from = start as usize * width;
        let bytes = &self.payload()[from..from + out.len() * width];
        match self.layout.token_type {
            TokenType::Uint8 => {
                out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = u32::from(*byte));
            }
            TokenType::Uint16 => {
                for (out, pair) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = u32::from(u16::from_le_bytes(*pair));
                }
            }
            TokenType::Int32 | TokenType::Uint32 => {
                for (out, four) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = u32::from_le_bytes(*four);
                }
            }
            TokenType::Int64 => {
                for (out, eight) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = narrowed(*eight);
                }
            }
        }
    }

    /// Reads the whole file once, on the threads of the current rayon pool.
    ///
    /// # Errors
    /// [`DataError::Malformed`] if the bytes of a downloaded file have changed since.
    pub(in crate::data) fn scan(&self) -> Result<Scan, DataError> {
        let (header, payload) = self.bytes.split_at(self.layout.header_bytes);
        let mut hasher = blake3::Hasher::new();
        hasher.update(header);
        let mut found = None;
        for piece in payload.chunks(SCAN_PIECE_BYTES) {
            hasher.update_rayon(piece);
            let token_type = self.layout.token_type;
            let parts = piece.par_chunks(SCAN_PIECE_BYTES / 32);
            found = found.max(parts.map(|part| largest(part, token_type)).max().flatten());
        }
        let digest = hasher.finalize().to_hex().to_string();
        match &self.downloaded {
            Some(downloaded) if *downloaded != digest => Err(DataError::Malformed {
                path: self.name.clone(),
                offset: 0,
                expected: format!("BLAKE3 {downloaded}, as it was downloaded"),
                found: digest,
                hint: String::new(),
            }),
            _ => Ok(Scan { digest, largest: found }),
        }
    }

    /// Checks the largest token of a scan against the vocabulary.
    ///
    /// # Errors
    /// [`DataError::TokenTooLarge`] with the offset of the first such token.
    pub(super) fn check_vocabulary(&self, scan: &Scan, vocabulary: usize) -> Result<(), DataError> {
        let too_large = |token: u32| token as usize >= vocabulary;
        if !scan.largest.is_some_and(too_large) {
            return Ok(());
        }
        let mut token = [0];
        let first = (0..self.layout.tokens).find(|position| {
            self.read(*position, &mut token);
            too_large(token[0])
        });
        let token_type = self.layout.token_type;
        let start = first.unwrap_or(0) as usize * token_type.bytes();
        Err(DataError::TokenTooLarge {
            path: self.name.clone(),
            offset: (self.layout.header_bytes + start) as u64,
            token: token_type.id(&self.payload()[start..]),
            vocabulary,
        })
    }

    fn payload(&self) -> &[u8] {
        &self.bytes[self.layout.header_bytes..]
    }
}

/// Returns the largest token of some bytes; the loops are simple enough to be auto-vectorised.
fn largest(bytes: &[u8], token_type: TokenType) -> Option<u32> {
    match token_type {
        TokenType::Uint8 => bytes.iter().max().map(|token| u32::from(*token)),
        TokenType::Uint16 => {
            let (pairs, _) = bytes.as_chunks();
            pairs.iter().map(|pair| u16::from_le_bytes(*pair)).max().map(u32::from)
        }
        TokenType::Int32 | TokenType::Uint32 => {
            let (fours, _) = bytes.as_chunks();
            fours.iter().map(|four| u32::from_le_bytes(*four)).max()
        }
        TokenType::Int64 => {
            let (eights, _) = bytes.as_chunks();
            eights.iter().map(|eight| narrowed(*eight)).max()
        }
    }
}

/// Returns a token of 8 bytes. A negative one, or one that does not fit, becomes the largest
/// number, which no vocabulary has.
fn narrowed(bytes: [u8; 8]) -> u32 {
    u32::try_from(u64::from_le_bytes(bytes)).unwrap_or(u32::MAX)
}
