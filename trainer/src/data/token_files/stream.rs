//! Stream of tokens over several token files.

use super::token_file::{Scan, TokenFile};
use crate::data::error::DataError;
use crate::data::locations::LocalFile;

/// Token files, concatenated.
#[derive(Debug)]
pub(in crate::data) struct TokenStream {
    files: Vec<TokenFile>,
    /// Position of each file's first token, and the end of the last file.
    starts: Vec<u64>,
    scans: Vec<Scan>,
}

impl TokenStream {
    /// Opens, scans and checks the files, in this order. Files without a header have tokens of
    /// `token_bytes` each.
    pub(in crate::data) fn open(
        files: &[LocalFile],
        token_bytes: Option<usize>,
        vocabulary: usize,
    ) -> Result<Self, DataError> {
        let mut stream = Self { files: Vec::new(), starts: vec![0], scans: Vec::new() };
        for file in files {
            let file = TokenFile::open(file, token_bytes)?;
            let scan = file.scan()?;
            file.check_vocabulary(&scan, vocabulary)?;
            stream.starts.push(stream.tokens() + file.layout.tokens);
            stream.files.push(file);
            stream.scans.push(scan);
        }
        Ok(stream)
    }

    /// Returns the number of tokens in all files.
    pub(in crate::data) fn tokens(&self) -> u64 {
        self.starts[self.files.len()]
    }

    /// Adds the content of the files to a hash, without their names.
    pub(in crate::data) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        for (file, scan) in self.files.iter().zip(&self.scans) {
            let line = format!("{:?} {}\n", file.layout.token_type, scan.digest);
            hasher.update(line.as_bytes());
        }
    }

    /// Returns the number of whole windows of `sequence_tokens` inputs, each with one more token as
    /// its last target.
    pub(in crate::data) fn windows(&self, sequence_tokens: usize) -> u64 {
        self.tokens().saturating_sub(1) / sequence_tokens as u64
    }

    /// Checks that there are at least `windows` windows; `reason` says what they are for.
    pub(in crate::data) fn check_windows(
        &self,
        windows: u64,
        sequence_tokens: usize,
        reason: String,
    ) -> Result<(), DataError> {
        if self.windows(sequence_tokens) >= windows {
            return Ok(());
        }
        Err(DataError::TooFewTokens {
            paths: self.files.iter().map(|file| file.name.clone()).collect(),
            needed: windows * sequence_tokens as u64 + 1,
            found: self.tokens(),
            reason,
        })
    }

    /// Copies tokens from position `start`; the range may span files.
    pub(in crate::data) fn read(&self, mut start: u64, mut out: &mut [u32]) {
        let mut file = self.starts.partition_point(|first| *first <= start) - 1;
        while !out.is_empty() {
            let left = self.starts[file + 1] - start;
            let (head, tail) = out.split_at_mut(out.len().min(left as usize));
            self.files[file].read(start - self.starts[file], head);
            start += head.len() as u64;
            out = tail;
            file += 1;
        }
    }
}
