//! Tests of the data code, through its public interface where possible.

mod bad_files;
mod fuzz;
mod objects;
mod real_text;
mod round_trip;
mod sequences;
mod synthetic;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use models::workload::{DataConfig, DataSource};
use tempfile::TempDir;

use super::locations::LocalFile;
use super::token_files::TokenFile;
use super::{DataError, Locations, Sequences, Source};

/// Creates a temporary folder for the files of one test.
fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn write(folder: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Returns nanoGPT's raw uint16 tokens.
fn raw(tokens: impl IntoIterator<Item = u16>) -> Vec<u8> {
    tokens.into_iter().flat_map(u16::to_le_bytes).collect()
}

/// Returns an llm.c file with the given header.
fn llmc(magic: u32, version: u32, count: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        [magic, version, count].into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.resize(1024, 0);
    bytes.extend(payload);
    bytes
}

/// Returns a Megatron index with the given tables.
fn index(code: u8, lengths: &[i32], offsets: &[i64], marks: &[i64]) -> Vec<u8> {
    let mut bytes = b"MMIDIDX\0\0".to_vec();
    bytes.extend(1_u64.to_le_bytes());
    bytes.push(code);
    bytes.extend((lengths.len() as u64).to_le_bytes());
    bytes.extend((marks.len() as u64).to_le_bytes());
    bytes.extend(lengths.iter().flat_map(|length| length.to_le_bytes()));
    bytes.extend(offsets.iter().flat_map(|offset| offset.to_le_bytes()));
    bytes.extend(marks.iter().flat_map(|mark| mark.to_le_bytes()));
    bytes
}

fn config(files: &[&str], evaluation_files: &[&str], evaluation_sequences: usize) -> DataConfig {
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    DataConfig {
        source: DataSource::Files,
        seed: 7,
        files: owned(files),
        evaluation_files: owned(evaluation_files),
        evaluation_sequences,
        token_bytes: None,
    }
}

/// Opens a token file of a folder in the same way as training.
fn open_tokens(path: &Path) -> Result<TokenFile, DataError> {
    TokenFile::open(&LocalFile::new(path), None)
}

/// Returns the inputs and targets of one sequence of T tokens.
fn sequence(sequences: &dyn Sequences, index: u64, tokens: usize) -> (Vec<u32>, Vec<u32>) {
    let mut inputs = vec![0; tokens];
    let mut targets = vec![0; tokens];
    sequences.fill(index, &mut inputs, &mut targets);
    (inputs, targets)
}

/// Returns the error of opening training data at V = 1000, T = 8, without the folder's name.
fn open_error(folder: &Path, config: &DataConfig) -> String {
    let error = open_training(config, 1000, 8, folder).unwrap_err();
    error.to_string().replace(&format!("{}/", folder.display()), "")
}

/// Opens a configuration and returns its training sequences.
fn open_training(
    config: &DataConfig,
    vocabulary: usize,
    sequence_tokens: usize,
    base: &Path,
) -> Result<Arc<dyn Sequences>, DataError> {
    Source::open(config, vocabulary, &Locations::new(base))?.training(sequence_tokens)
}

/// Opens a configuration and returns its held-out sequences.
fn open_evaluation(
    config: &DataConfig,
    vocabulary: usize,
    sequence_tokens: usize,
    base: &Path,
) -> Result<Arc<dyn Sequences>, DataError> {
    Source::open(config, vocabulary, &Locations::new(base))?.evaluation(sequence_tokens)
}
