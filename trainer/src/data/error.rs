//! The one error type of token data.

use std::{io, path::PathBuf};

/// What went wrong with token data, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The system refused: fix the path, the permissions or the disk.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried, as in `open`.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The bytes at an offset are not what the format says; the file is damaged or another kind.
    #[error("{}: byte {offset}: expected {expected}, found {found}{hint}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Offset of the bad field in the file, bytes.
        offset: u64,
        /// What the format says.
        expected: String,
        /// What is there.
        found: String,
        /// Advice, starting with a separator, or nothing.
        hint: String,
    },
    /// The file is shorter than its own header says; copy or make it again.
    #[error(
        "{}: truncated at byte {found_bytes}: expected {expected_bytes} bytes ({reason}), \
         found {found_bytes}; copy or make the file again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Size that the header asks for, bytes.
        expected_bytes: u64,
        /// Size of the file, bytes.
        found_bytes: u64,
        /// Where the expectation comes from.
        reason: String,
    },
    /// A token id does not fit the model; use the vocabulary the file was made with.
    #[error(
        "{}: byte {offset}: expected token ids below the vocabulary {vocabulary}, found {token}; \
         is model.vocabulary the one that the file was made with?",
        path.display()
    )]
    TokenTooLarge {
        /// The file.
        path: PathBuf,
        /// Offset of the first such token in the file, bytes.
        offset: u64,
        /// The token id.
        token: i64,
        /// V, the number of ids the model knows.
        vocabulary: usize,
    },
    /// The files are too short for the workload; add files or ask for less.
    #[error(
        "{}: expected at least {needed} tokens ({reason}), found {found}; \
         add files, or lower batch.sequence_tokens or data.evaluation_sequences",
        paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    TooFewTokens {
        /// The files, which together are one stream.
        paths: Vec<PathBuf>,
        /// Smallest number of tokens that would do.
        needed: u64,
        /// Tokens in the files.
        found: u64,
        /// How `needed` comes about.
        reason: String,
    },
    /// Text given to the tokenizer is not what its format says; fix the text.
    #[error("{}: {place}: expected {expected}, found {found}", path.display())]
    BadText {
        /// The text file.
        path: PathBuf,
        /// Byte offset or line, in words.
        place: String,
        /// What the format says.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The output cannot be written in this form; choose another format or name.
    #[error("{}: cannot write {format}: {reason}", path.display())]
    Unwritable {
        /// The output.
        path: PathBuf,
        /// Name of the format.
        format: &'static str,
        /// Why, and what to do instead.
        reason: String,
    },
}

impl DataError {
    /// For `map_err` after a system call on `path`.
    pub(super) fn io(
        path: impl Into<PathBuf>,
        action: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, action, source }
    }
}
