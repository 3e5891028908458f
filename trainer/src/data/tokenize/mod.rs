//! Tokenizer of text to token files, in one pass and bounded memory.

mod documents;
mod gpt2;
mod not_text;

use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::Serialize;

use super::error::DataError;
use super::token_files::{Format, TokenWriter};
pub use documents::InputFormat;
use documents::Piece;

/// Size of the text tokenized at a time, over all threads. Memory is a small multiple of this,
/// unless a single line or JSONL document is longer.
const BATCH_BYTES: usize = 8 << 20;
/// Token of GPT-2's `<|endoftext|>`.
const END_OF_TEXT: u16 = 50_256;
/// End of a document in the byte vocabulary: a byte 0, which is refused in text, unless text is
/// taken as it is.
const END_OF_BYTES: u16 = 0;

/// What turns text into token ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Vocabulary {
    /// GPT-2's byte pair encoding, V = 50257; each document ends with `<|endoftext|>`, 50256.
    /// Text must be UTF-8; `<|endoftext|>` spelled out in it is ordinary text.
    Gpt2,
    /// Each byte is a token, V = 256; each document ends with byte 0.
    Bytes,
}

impl Vocabulary {
    /// Returns the number of token ids, V.
    pub fn tokens(self) -> usize {
        match self {
            Self::Gpt2 => 50_257,
            Self::Bytes => 256,
        }
    }

    fn end_of_document(self) -> u16 {
        match self {
            Self::Gpt2 => END_OF_TEXT,
            Self::Bytes => END_OF_BYTES,
        }
    }

    /// Encodes a piece. `takes_zeros` allows a byte 0 in text although documents of bytes end with
    /// one.
    fn encode(self, path: &Path, piece: &Piece, takes_zeros: bool) -> Result<Vec<u16>, DataError> {
        let unexpected = |index: usize, expected: &str| DataError::BadText {
            path: path.to_owned(),
            location: piece.position.location_of_byte(index),
            expected: expected.to_owned(),
            found: format!("byte 0x{:02x}", piece.text[index]),
        };
        if self == Self::Bytes {
            let zero = piece.text.iter().position(|byte| *byte == 0);
            if let Some(index) = zero.filter(|_| !takes_zeros) {
                let expected = "text without a byte 0, with which documents of bytes end";
                return Err(unexpected(index, expected));
            }
            return Ok(piece.text.iter().map(|byte| u16::from(*byte)).collect());
        }
        let text = std::str::from_utf8(&piece.text)
            .map_err(|error| unexpected(error.valid_up_to(), "UTF-8 text"))?;
        Ok(gpt2::encode(text).into_iter().map(|id| id as u16).collect()) // V is below 65536
    }
}

/// Inputs, output and options of the tokenizer.
#[derive(Debug, Clone)]
pub struct TokenizePlan {
    /// Text files, in this order.
    pub inputs: Vec<PathBuf>,
    /// Division of the inputs into documents.
    pub input_format: InputFormat,
    /// Vocabulary that maps text to ids.
    pub vocabulary: Vocabulary,
    /// Token file, which is replaced only on success. Megatron's index gets the same name with the
    /// extension `idx`.
    pub out: PathBuf,
    /// Format of the token file; tokens are uint16 in each.
    pub output_format: Format,
}

/// Report of the output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TokenizeReport {
    /// Token file.
    pub out: PathBuf,
    /// Format of the token file.
    pub format: Format,
    /// Vocabulary that mapped text to ids.
    pub vocabulary: Vocabulary,
    /// Bytes of text, without JSON syntax.
    pub text_bytes: u64,
    /// Documents that have text.
    pub documents: u64,
    /// Tokens, including those that end documents.
    pub tokens: u64,
}

/// Writes one token file from all inputs, with all threads of the current rayon pool.
///
/// # Errors
/// An input cannot be read or does not match the plan, there is no text at all, or the output
/// cannot be written; the file at `out` is then unchanged.
pub fn tokenize(plan: &TokenizePlan) -> Result<TokenizeReport, DataError> {
    let mut batch = Batch {
        plan,
        pieces: Vec::new(),
        pending_bytes: 0,
        text_bytes: 0,
        writer: TokenWriter::create(&plan.out, plan.output_format)?,
    };
    for (input, path) in plan.inputs.iter().enumerate() {
        documents::read(path, input, &plan.input_format, &mut |piece| batch.add(piece))?;
    }
    batch.encode()?;
    let writer = batch.writer;
    if writer.tokens() == 0 {
        return Err(DataError::TooFewTokens {
            paths: plan.inputs.clone(),
            needed: 1,
            found: 0,
            reason: "the inputs hold no text".to_owned(),
        });
    }
    let report = TokenizeReport {
        out: plan.out.clone(),
        format: plan.output_format,
        vocabulary: plan.vocabulary,
        text_bytes: batch.text_bytes,
        documents: writer.documents(),
        tokens: writer.tokens(),
    };
    writer.finish()?;
    Ok(report)
}

/// Batch of pieces that are tokenized together.
struct Batch<'a> {
    plan: &'a TokenizePlan,
    pieces: Vec<Piece>,
    pending_bytes: usize,
    text_bytes: u64,
    writer: TokenWriter,
}

impl Batch<'_> {
    fn add(&mut self, piece: Piece) -> Result<(), DataError> {
        self.pending_bytes += piece.text.len();
        self.pieces.push(piece);
        if self.pending_bytes >= BATCH_BYTES { self.encode() } else { Ok(()) }
    }

    fn encode(&mut self) -> Result<(), DataError> {
        let plan = self.plan;
        let takes_zeros = plan.input_format == InputFormat::AnyBytes;
        let encode =
            |piece: &Piece| plan.vocabulary.encode(&plan.inputs[piece.input], piece, takes_zeros);
        let encoded: Result<Vec<_>, _> = self.pieces.par_iter().map(encode).collect();
        for (piece, mut tokens) in self.pieces.drain(..).zip(encoded?) {
            if piece.ends_document {
                tokens.push(plan.vocabulary.end_of_document());
            }
            self.writer.push(&tokens)?;
            if piece.ends_document {
                self.writer.end_document();
            }
        }
        self.text_bytes += self.pending_bytes as u64;
        self.pending_bytes = 0;
        Ok(())
    }
}
