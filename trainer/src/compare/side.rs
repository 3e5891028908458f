//! The records of one side of a comparison, and the sessions that they were made in.

use std::path::{Path, PathBuf};

use crate::baseline::{Baselines, Kept, Key};
use crate::failure::{Failure, Outcome};
use crate::record::{Record, Status};

/// A record and where it is from.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) record: Record,
}

/// The records of one side, in the order in which their runs started.
#[derive(Debug, Clone)]
pub(crate) struct Side {
    pub(super) sources: Vec<Source>,
}

/// Runs less than this apart have seen the machine in the same state.
const SESSION_GAP_MS: u64 = 3_600_000;

impl Side {
    /// Reads records: of a run's folder, of all runs in a folder, or a file.
    ///
    /// # Errors
    /// Exit code 2 for what is not a record of a complete run.
    pub(crate) fn read(paths: &[PathBuf]) -> Outcome<Self> {
        let mut sources = Vec::new();
        for path in paths {
            let found = Record::read_all(path).map_err(Failure::usage)?;
            sources.extend(found.into_iter().map(|(path, record)| Source { path, record }));
        }
        Self::new(sources)
    }

    /// The same, or of stores of baselines those records that belong to the other side: no sources
    /// where stores have none of them.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_base(paths: &[PathBuf], new: &Self) -> Outcome<Self> {
        let mut sources = Vec::new();
        for path in paths {
            match Baselines::open(path) {
                None => sources.extend(Self::read(std::slice::from_ref(path))?.sources),
                Some(store) => sources.extend(baseline_of(&store, new)?),
            }
        }
        Self::new(sources)
    }

    pub(super) fn new(mut sources: Vec<Source>) -> Outcome<Self> {
        for Source { path, record } in &sources {
            require_figures(path, record)?;
        }
        sources.sort_by_key(|source| started_unix_ms(&source.record));
        Ok(Self { sources })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// What its baseline would be kept as.
    pub(crate) fn key(&self) -> Option<Key> {
        self.records().next().map(Key::of)
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &Record> + Clone {
        self.sources.iter().map(|source| &source.record)
    }

    /// Runs one after the other without a long break share what the machine was like then: their
    /// mean is one value.
    pub(super) fn sessions(&self) -> Vec<&[Source]> {
        let follows = |left: &Source, right: &Source| {
            let gap = started_unix_ms(&right.record).saturating_sub(ended_unix_ms(&left.record));
            gap < SESSION_GAP_MS
        };
        self.sources.chunk_by(follows).collect()
    }
}

/// When the measured attempt started.
pub(super) fn started_unix_ms(record: &Record) -> u64 {
    record.attempts.last().map_or(0, |attempt| attempt.started_unix_ms)
}

pub(super) fn ended_unix_ms(record: &Record) -> u64 {
    let ended = record.attempts.last().and_then(|attempt| attempt.ended_unix_ms);
    ended.unwrap_or_else(|| started_unix_ms(record))
}

fn baseline_of(store: &Baselines, new: &Side) -> Outcome<Vec<Source>> {
    let Some(key) = new.key() else { return Ok(Vec::new()) };
    let kept = store.records(&key).map_err(Failure::usage)?;
    let is_new = |kept: &Kept| new.records().any(|record| is_of_same_run(record, &kept.record));
    let promoted = kept.into_iter().filter(|kept| kept.is_promoted && !is_new(kept));
    Ok(promoted.map(|Kept { path, record, .. }| Source { path, record }).collect())
}

/// Whether two records of one workload are of one run, which may have gone on after the first was
/// kept. Runs that start within the same millisecond are rare, and one baseline less does no harm.
fn is_of_same_run(one: &Record, other: &Record) -> bool {
    let started = |record: &Record| record.attempts.first().map(|first| first.started_unix_ms);
    started(one) == started(other)
}

fn require_figures(path: &Path, record: &Record) -> Outcome<()> {
    let shown = path.display();
    if record.status != Status::Complete {
        let status = record.status.name();
        return Err(Failure::usage(format!("{shown}: expected a complete run, found {status}")));
    }
    if record.steps.is_none() || record.tokens_per_second.is_none() {
        return Err(Failure::usage(format!("{shown}: expected measured steps, found none")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::finished;

    #[test]
    fn a_run_is_not_its_own_baseline_even_if_it_went_on_after_it_was_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = Baselines::at(folder.path().to_str().unwrap()).unwrap();
        store.add(&finished()).unwrap();
        let base = |record: &Record| {
            let source = Source { path: PathBuf::new(), record: record.clone() };
            Side::read_base(&[folder.path().to_owned()], &Side { sources: vec![source] }).unwrap()
        };
        let mut later = finished();
        later.attempts.push(later.attempts[1].clone());
        assert!(base(&later).is_empty());
        later.attempts[0].started_unix_ms += 1;
        assert_eq!(base(&later).sources.len(), 1, "another run");
    }
}
