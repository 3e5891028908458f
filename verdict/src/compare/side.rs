//! The records of one side of a comparison, and their sessions.

use std::path::PathBuf;

use super::comparable::not_comparable;
use crate::error::Result;
use record::Record;

/// A record and its path.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) record: Record,
}

/// The records of one side, in the order in which their runs started.
#[derive(Debug, Clone)]
pub struct Side {
    pub(crate) sources: Vec<Source>,
}

/// Gap between sessions: runs less than this apart have seen the machine in the same state.
pub(crate) const SESSION_GAP_MS: u64 = 3_600_000;

impl Side {
    /// Reads records: of a run's folder, of all runs in a folder, or a file.
    ///
    /// # Errors
    /// Exit code 12 for files that are not records.
    pub fn read(paths: &[PathBuf]) -> Result<Self> {
        let mut sources = Vec::new();
        for path in paths {
            let found =
                Record::read_all(path).map_err(|error| not_comparable(error.to_string()))?;
            sources.extend(found.into_iter().map(|(path, record)| Source { path, record }));
        }
        Ok(Self::new(sources))
    }

    pub(crate) fn new(mut sources: Vec<Source>) -> Self {
        sources.sort_by_key(|source| started_unix_ms(&source.record));
        Self { sources }
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = &Record> + Clone {
        self.sources.iter().map(|source| &source.record)
    }

    /// Groups runs into sessions. Consecutive runs without a long break share the state of the
    /// machine: their mean is one value.
    pub(crate) fn sessions(&self) -> Vec<&[Source]> {
        let follows = |left: &Source, right: &Source| {
            let gap = started_unix_ms(&right.record).saturating_sub(ended_unix_ms(&left.record));
            gap < SESSION_GAP_MS
        };
        self.sources.chunk_by(follows).collect()
    }
}

/// Returns the start of the measured attempt.
pub(crate) fn started_unix_ms(record: &Record) -> u64 {
    record.attempts.last().map_or(0, |attempt| attempt.started_unix_ms)
}

pub(crate) fn ended_unix_ms(record: &Record) -> u64 {
    let ended = record.attempts.last().and_then(|attempt| attempt.ended_unix_ms);
    ended.unwrap_or_else(|| started_unix_ms(record))
}

impl Source {
    /// Returns whether another record of the same workload is of this run, which may have been
    /// resumed after one of them was kept. Runs that start within the same millisecond are rare,
    /// and one less to compare with does no harm.
    pub(crate) fn is_of_same_run(&self, other: &Record) -> bool {
        let started = |record: &Record| record.attempts.first().map(|first| first.started_unix_ms);
        started(&self.record) == started(other)
    }
}
