//! The base of a comparison: records, or the matching records of a store.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::baseline::{Baselines, Key, OpenStorage, StoredRecord, machine_of};
use crate::compare::{Side, Source, not_comparable};
use crate::error::{Error, Result};

/// Base that a run is compared with.
#[derive(Debug)]
pub enum Base {
    /// Records to compare with.
    Found(Side),
    /// No records: stores have no other records of its kind, or of the former state of its machine.
    None {
        /// Kind of the run: workload, world size and machine type.
        key: Key,
        /// Change of one of its hosts since the same workload ran there, if any, unless the records
        /// of its present state were promoted.
        changed: Option<String>,
    },
}

impl Base {
    /// Reads records as [`Side::read`] does, or from stores of baselines those that match the other
    /// side.
    ///
    /// # Errors
    /// Exit code 12 for unreadable records, and if the other side is of several kinds.
    pub fn read(open: OpenStorage, paths: &[PathBuf], new: &Side) -> Result<Self> {
        let mut sources = Vec::new();
        let mut changed = None;
        for path in paths {
            let Some(store) = Baselines::open(open, path).map_err(unreadable)? else {
                sources.extend(Side::read(std::slice::from_ref(path))?.sources);
                continue;
            };
            require_one_kind(new)?;
            let mut checked = BTreeSet::new();
            for record in new.records() {
                let machines: Vec<_> = record.ranks.iter().map(machine_of).collect();
                if checked.insert(machines) {
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

fn unreadable(error: Error) -> Error {
    not_comparable(error.to_string())
}

fn require_one_kind(new: &Side) -> Result<()> {
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

fn baseline_of(store: &Baselines, new: &Side) -> Result<Vec<Source>> {
    let Some(key) = new.records().next().map(Key::of) else { return Ok(Vec::new()) };
    let kept = store.records(&key).map_err(unreadable)?;
    let is_new = |kept: &StoredRecord| new.sources.iter().any(|it| it.is_of_same_run(&kept.record));
    let promoted = kept.into_iter().filter(|kept| kept.is_promoted && !is_new(kept));
    Ok(promoted.map(|StoredRecord { path, record, .. }| Source { path, record }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::open_folder;
    use record::Record;
    use record::fixtures::comparable;

    #[test]
    fn a_run_is_not_its_own_baseline_even_if_it_went_on_after_it_was_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = Baselines::at(open_folder, folder.path().to_str().unwrap()).unwrap();
        store.add(&comparable()).unwrap();
        let base = |record: &Record| {
            let source = Source { path: PathBuf::new(), record: record.clone() };
            Base::read(open_folder, &[folder.path().to_owned()], &Side::new(vec![source])).unwrap()
        };
        let mut later = comparable();
        later.attempts.push(later.attempts[1].clone());
        assert!(matches!(base(&later), Base::None { changed: None, .. }));
        later.attempts[0].started_unix_ms += 1;
        let Base::Found(side) = base(&later) else { panic!("another run") };
        assert_eq!(side.sources.len(), 1);
    }
}
