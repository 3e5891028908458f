//! Error type of token data.

use std::path::PathBuf;

use record::files::IoError;

use record::text::number_format::count;

/// Error of token data, by what the caller can do about it.
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
    /// The folder that keeps files of object stores cannot be used in this way.
    #[error("{}: expected {expected}, found {found}", folder.display())]
    BadCache {
        /// Path of the folder.
        folder: PathBuf,
        /// Requirement that it does not meet.
        expected: String,
        /// State that was found.
        found: String,
    },
    /// A field is not what the format requires; the file is damaged or of another kind.
    #[error("{}: byte {offset}: expected {expected}, found {found}{hint}", path.display())]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Offset of the bad field in the file, bytes.
        offset: u64,
        /// Value that the format requires.
        expected: String,
        /// Value in the file.
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
        /// Path of the file.
        path: PathBuf,
        /// Required size, bytes.
        expected_bytes: u64,
        /// Size of the file, bytes.
        found_bytes: u64,
        /// Origin of the expected size.
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
        /// Path of the file.
        path: PathBuf,
        /// Offset of the first such token in the file, bytes.
        offset: u64,
        /// Token id.
        token: i64,
        /// Number of token ids of the model, V.
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
        /// Paths of the files, which together are one stream.
        paths: Vec<PathBuf>,
        /// Smallest sufficient number of tokens.
        needed: u64,
        /// Number of tokens in the files.
        found: u64,
        /// Calculation of `needed`.
        reason: String,
    },
    /// The tokenizer's input is not in the stated format.
    #[error("{}: {location}: expected {expected}, found {found}", path.display())]
    BadText {
        /// Path of the text file.
        path: PathBuf,
        /// `byte N` or `line N`.
        location: String,
        /// Text that the format requires.
        expected: String,
        /// Text in the file.
        found: String,
    },
    /// The tokenizer's input is not text.
    #[error("{}: expected plain text, found {found}\n  hint: {hint}", path.display())]
    NotText {
        /// Path of the input.
        path: PathBuf,
        /// Kind of file that it looks like.
        found: String,
        /// Advice about what to do instead.
        hint: String,
    },
    /// The output cannot be written in this format or under this name.
    #[error("{}: cannot write {format}: {reason}", path.display())]
    Unwritable {
        /// Path of the output.
        path: PathBuf,
        /// Name of the format.
        format: &'static str,
        /// Reason, and advice about what to do instead.
        reason: String,
    },
}

impl DataError {
    /// Returns whether the error can be caused by changed bytes in the files.
    pub(super) fn is_damage(&self) -> bool {
        matches!(self, Self::Malformed { .. } | Self::Truncated { .. } | Self::BadCache { .. })
    }
}
