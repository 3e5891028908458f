//! The records of one side of a comparison, and the sessions that they were made in.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::comparable::not_comparable;
use crate::baseline::{Baselines, Kept, Key, machine_of};
use crate::failure::{Failure, Outcome};
use record::Record;

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
pub(super) const SESSION_GAP_MS: u64 = 3_600_000;

impl Side {
    /// Reads records: of a run's folder, of all runs in a folder, or a file.
    ///
    /// # Errors
    /// Exit code 12 for what is not a record.
    pub(crate) fn read(paths: &[PathBuf]) -> Outcome<Self> {
        let mut sources = Vec::new();
        for path in paths {
            let found =
                Record::read_all(path).map_err(|error| not_comparable(error.to_string()))?;
            sources.extend(found.into_iter().map(|(path, record)| Source { path, record }));
        }
        Ok(Self::new(sources))
    }

    pub(super) fn new(mut sources: Vec<Source>) -> Self {
        sources.sort_by_key(|source| started_unix_ms(&source.record));
        Self { sources }
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

/// What a run is compared with.
#[derive(Debug)]
pub(crate) enum Base {
    /// These records.
    Found(Side),
    /// Nothing: stores have no other records of its kind, or of what its machine was before.
    None {
        /// Its kind: workload, world size and machine type.
        key: Key,
        /// How a host of it has changed since the same workload ran there, if it has, and what is
        /// kept of it now was not promoted.
        changed: Option<String>,
    },
}

impl Base {
    /// Reads records as [`Side::read`] does, or of stores of baselines those that belong to the
    /// other side.
    ///
    /// # Errors
    /// Exit code 12 for what cannot be read, and where the other side is of several kinds.
    pub(crate) fn read(paths: &[PathBuf], new: &Side) -> Outcome<Self> {
        let mut sources = Vec::new();
        let mut changed = None;
        for path in paths {
            let Some(store) = Baselines::open(path).map_err(unreadable)? else {
                sources.extend(Side::read(std::slice::from_ref(path))?.sources);
                continue;
            };
            require_one_kind(new)?;
            let mut looked_at = BTreeSet::new();
            for record in new.records() {
                let machines: Vec<_> = record.ranks.iter().map(machine_of).collect();
                if looked_at.insert(machines) {
                    changed = store.changed_machine(record).map_err(unreadable)?.or(changed);
                }
            }
            if changed.is_none() {
                sources.extend(baseline_of(&store, new)?);
            }
        }
        let is_none = sources.is_empty() || changed.is_some();
        match new.records().next().filter(|_| is_none).map(Key::of) {
            Some(key) => Ok(Self::None { key, changed }),
            None => Ok(Self::Found(Side::new(sources))),
        }
    }
}

fn unreadable(error: impl Into<anyhow::Error>) -> Failure {
    not_comparable(format!("{:#}", error.into()))
}

fn require_one_kind(new: &Side) -> Outcome<()> {
    let mut keys = new.records().map(Key::of);
    let Some(key) = keys.next() else { return Ok(()) };
    match keys.find(|other| *other != key) {
        None => Ok(()),
        Some(other) => Err(not_comparable(format!(
            "NEW: expected runs of one workload, world size and machine type, found {key} and \
             {other}"
        ))),
    }
}

fn baseline_of(store: &Baselines, new: &Side) -> Outcome<Vec<Source>> {
    let Some(key) = new.records().next().map(Key::of) else { return Ok(Vec::new()) };
    let kept = store.records(&key).map_err(unreadable)?;
    let is_new = |kept: &Kept| new.sources.iter().any(|it| it.is_of_same_run(&kept.record));
    let promoted = kept.into_iter().filter(|kept| kept.is_promoted && !is_new(kept));
    Ok(promoted.map(|Kept { path, record, .. }| Source { path, record }).collect())
}

impl Source {
    /// Whether another record of the same workload is of this run, which may have gone on after one
    /// of them was kept. Runs that start within the same millisecond are rare, and one less to
    /// compare with does no harm.
    pub(super) fn is_of_same_run(&self, other: &Record) -> bool {
        let started = |record: &Record| record.attempts.first().map(|first| first.started_unix_ms);
        started(&self.record) == started(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::fixtures::comparable;

    #[test]
    fn a_run_is_not_its_own_baseline_even_if_it_went_on_after_it_was_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = Baselines::at(folder.path().to_str().unwrap()).unwrap();
        store.add(&comparable()).unwrap();
        let base = |record: &Record| {
            let source = Source { path: PathBuf::new(), record: record.clone() };
            Base::read(&[folder.path().to_owned()], &Side { sources: vec![source] }).unwrap()
        };
        let mut later = comparable();
        later.attempts.push(later.attempts[1].clone());
        assert!(matches!(base(&later), Base::None { changed: None, .. }));
        later.attempts[0].started_unix_ms += 1;
        let Base::Found(side) = base(&later) else { panic!("another run") };
        assert_eq!(side.sources.len(), 1);
    }
}
