//! Data source of a workload: opened once, it provides training and evaluation sequences.

use std::sync::Arc;

use models::workload::{DataConfig, DataSource};

use super::error::DataError;
use super::locations::{LocalFile, Locations};
use super::sequences::Sequences;
use super::synthetic::Synthetic;
use super::token_files::TokenStream;
use super::windows::Windows;
use record::text::number_format;

/// Opened and checked `[data]` section. Opening reads every token file once, for its digest and
/// largest token; creating sequences is then cheap.
#[derive(Debug)]
pub struct Source {
    config: DataConfig,
    vocabulary: usize,
    files: Option<Files>,
}

#[derive(Debug)]
struct Files {
    training: Arc<TokenStream>,
    evaluation: Option<Arc<TokenStream>>,
    digest: String,
}

impl Source {
    /// Opens the files of a configuration, and downloads files of object stores that this node does
    /// not have. Reads files on the threads of the current rayon pool.
    ///
    /// # Errors
    /// A file is missing or damaged, or has a token id that is not below `vocabulary`.
    pub fn open(
        config: &DataConfig,
        vocabulary: usize,
        locations: &Locations,
    ) -> Result<Self, DataError> {
        let files = match config.source {
            DataSource::Synthetic => None,
            DataSource::Files => Some(Files::open(config, vocabulary, locations)?),
        };
        Ok(Self { config: config.clone(), vocabulary, files })
    }

    /// Returns the digest of the files' content for the workload id, 64 hexadecimal digits: BLAKE3
    /// over the token type and BLAKE3 of each file. `None` for the synthetic source.
    pub fn digest(&self) -> Option<&str> {
        self.files.as_ref().map(|files| files.digest.as_str())
    }

    /// Returns training sequences of `sequence_tokens` tokens.
    ///
    /// # Errors
    /// [`DataError::TooFewTokens`] without at least one sequence in addition to the held-out ones.
    ///
    /// # Panics
    /// If `sequence_tokens` is 0.
    pub fn training(&self, sequence_tokens: usize) -> Result<Arc<dyn Sequences>, DataError> {
        assert!(sequence_tokens > 0, "sequences of no tokens");
        let Some(files) = &self.files else {
            return Ok(Arc::new(Synthetic::training(self.config.seed, self.vocabulary)));
        };
        let held_out = match files.evaluation {
            None => self.config.evaluation_sequences as u64,
            Some(_) => 0,
        };
        let reason = format!(
            "1 training and {held_out} held-out sequences of {sequence_tokens} tokens, and a target"
        );
        files.training.check_windows(1 + held_out, sequence_tokens, reason)?;
        Ok(Arc::new(Windows {
            stream: Arc::clone(&files.training),
            first: 0,
            count: files.training.windows(sequence_tokens) - held_out,
            sequence_tokens,
            seed: Some(self.config.seed),
        }))
    }

    /// Returns the `evaluation_sequences` held-out sequences of `sequence_tokens` tokens: the first
    /// of `evaluation_files`, or the last of `files`, in the order of the files.
    ///
    /// # Errors
    /// [`DataError::TooFewTokens`] if there are fewer.
    ///
    /// # Panics
    /// If `sequence_tokens` is 0.
    pub fn evaluation(&self, sequence_tokens: usize) -> Result<Arc<dyn Sequences>, DataError> {
        assert!(sequence_tokens > 0, "sequences of no tokens");
        let count = self.config.evaluation_sequences as u64;
        let Some(files) = &self.files else {
            let seed = self.config.seed;
            return Ok(Arc::new(Synthetic::evaluation(seed, self.vocabulary, count)));
        };
        let stream = files.evaluation.as_ref().unwrap_or(&files.training);
        let needed = count + u64::from(files.evaluation.is_none()); // one is left for training
        let sequences = number_format::count(needed as usize, "sequence");
        let reason = format!("{sequences} of {sequence_tokens} tokens, and a target");
        stream.check_windows(needed, sequence_tokens, reason)?;
        let first = match files.evaluation {
            Some(_) => 0,
            None => stream.windows(sequence_tokens) - count,
        };
        Ok(Arc::new(Windows {
            stream: Arc::clone(stream),
            first,
            count,
            sequence_tokens,
            seed: None,
        }))
    }
}

impl Files {
    fn open(
        config: &DataConfig,
        vocabulary: usize,
        locations: &Locations,
    ) -> Result<Self, DataError> {
        let names = [config.files.as_slice(), &config.evaluation_files].concat();
        locations.open_files(&names, |files| Self::open_local(config, vocabulary, files))
    }

    fn open_local(
        config: &DataConfig,
        vocabulary: usize,
        files: &[LocalFile],
    ) -> Result<Self, DataError> {
        let (files, evaluation_files) = files.split_at(config.files.len());
        let open = |files: &[LocalFile]| {
            TokenStream::open(files, config.token_bytes, vocabulary).map(Arc::new)
        };
        let training = open(files)?;
        let evaluation = match evaluation_files {
            [] => None,
            files => Some(open(files)?),
        };
        let mut hasher = blake3::Hasher::new();
        training.hash_into(&mut hasher);
        if let Some(evaluation) = &evaluation {
            hasher.update(b"evaluation\n");
            evaluation.hash_into(&mut hasher);
        }
        Ok(Self { training, evaluation, digest: hasher.finalize().to_hex().to_string() })
    }
}
