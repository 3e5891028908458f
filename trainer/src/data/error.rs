//! The error type of token data.

use std::path::PathBuf;

use record::files::IoError;

use record::text::number_format::count;

/// What went wrong with token data, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file could not be read or written.
    #[error(transparent)]
    Io(#[from] IoError),
    /// Files of object stores cannot be kept.
    #[error(
        "no folder for downloaded files: expected run.data_cache, YARDSTICK_CACHE_DIR, \
         XDG_CACHE_HOME or HOME, found none"
    )]
    NoCacheFolder,
    /// The folder that keeps files of object stores cannot be used like this.
    #[error("{}: expected {expected}, found {found}", folder.display())]
    BadCache {
        /// The folder.
        folder: PathBuf,
        /// What it needs.
        expected: String,
        /// What it has.
        found: String,
    },
    /// A field is not what the format requires; the file is damaged or of another kind.
    #[error("{}: byte {offset}: expected {expected}, found {found}{hint}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Offset of the bad field in the file, bytes.
        offset: u64,
        /// What the format requires.
        expected: String,
        /// The value in the file.
        found: String,
        /// Advice, starting with a separator, or nothing.
        hint: String,
    },
    /// The file is shorter than its header or index requires.
    #[error(
        "{}: truncated at byte {found_bytes}: expected {expected_bytes} bytes ({reason}), \
         found {found_bytes}; copy or create the file again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Required size, bytes.
        expected_bytes: u64,
        /// Size of the file, bytes.
        found_bytes: u64,
        /// Where the expectation comes from.
        reason: String,
    },
    /// A token id is not in the model's vocabulary.
    #[error(
        "{}: byte {offset}: expected token ids below the vocabulary {vocabulary}, found {token}; \
         set model.vocabulary to that of the tokenizer that wrote the file, or data.token_bytes if \
         its tokens are of another size",
        path.display()
    )]
    TokenTooLarge {
        /// The file.
        path: PathBuf,
        /// Offset of the first such token in the file, bytes.
        offset: u64,
        /// The token id.
        token: i64,
        /// V, the number of token ids of the model.
        vocabulary: usize,
    },
    /// The files hold too few tokens for the workload.
    #[error(
        "{}: expected at least {} ({reason}), found {found}; \
         add files, or lower batch.sequence_tokens or data.evaluation_sequences",
        paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
        count(*needed as usize, "token")
    )]
    TooFewTokens {
        /// The files, which together are one stream.
        paths: Vec<PathBuf>,
        /// Smallest sufficient number of tokens.
        needed: u64,
        /// Tokens in the files.
        found: u64,
        /// How `needed` is calculated.
        reason: String,
    },
    /// The tokenizer's input is not in the stated format.
    #[error("{}: {location}: expected {expected}, found {found}", path.display())]
    BadText {
        /// The text file.
        path: PathBuf,
        /// `byte N` or `line N`.
        location: String,
        /// What the format requires.
        expected: String,
        /// What the file holds.
        found: String,
    },
    /// The tokenizer's input is something else than text.
    #[error("{}: expected plain text, found {found}\n  hint: {hint}", path.display())]
    NotText {
        /// The input.
        path: PathBuf,
        /// What it looks like.
        found: String,
        /// What to do instead.
        hint: String,
    },
    /// The output cannot be written in this format or under this name.
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
    /// Whether bytes other than those that were written can be the reason.
    pub(super) fn is_damage(&self) -> bool {
        matches!(self, Self::Malformed { .. } | Self::Truncated { .. } | Self::BadCache { .. })
    }
}
