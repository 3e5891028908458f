//! A store of records: a folder or a prefix of an object store, in which runs of each workload,
//! world size and machine type are kept, and some of them are what new runs are compared with.
//!
//! `WORKLOAD-ID/RANKSxMACHINE/STARTED-RUN.json` is a record, and `PROMOTED.json` beside them names
//! those that are the baseline; without it all are.

mod key;
mod summary;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use checkpoint::tier::Tier;
use serde::{Deserialize, Serialize};

pub(crate) use key::Key;
pub(crate) use summary::Summary;

use crate::checkpoints::open::place;
use crate::record::{self, Record};

/// The file that says what a folder is.
const MARKER: &str = "BASELINES";

/// The file that names the records of a baseline.
const PROMOTED: &str = "PROMOTED.json";

/// A store of baselines.
#[derive(Debug)]
pub(crate) struct Baselines {
    place: Arc<dyn Tier>,
}

/// A record on file.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) path: PathBuf,
    pub(crate) record: Record,
    /// Whether it belongs to the baseline.
    pub(crate) is_promoted: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Promoted {
    records: BTreeSet<String>,
}

/// Why a store cannot be used.
pub(crate) type Error = anyhow::Error;

impl Baselines {
    /// The store at a path or URL; nothing is touched.
    ///
    /// # Errors
    /// When the URL is not one of an object store that can be used.
    pub(crate) fn at(address: &str) -> Result<Self, Error> {
        Ok(Self { place: place(address, Duration::MAX)? })
    }

    /// The store at a path or URL, if there is one.
    pub(crate) fn open(address: &Path) -> Option<Self> {
        let store = Self::at(address.to_str()?).ok()?;
        store.place.exists(MARKER).is_ok_and(|exists| exists).then_some(store)
    }

    /// Keeps a record; it does not belong to a baseline before it is promoted, unless nothing was.
    /// Returns where it is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn add(&self, record: &Record) -> Result<PathBuf, Error> {
        if !self.place.exists(MARKER)? {
            self.place.replace(MARKER, b"Records of yardstick; see `yardstick baseline`.\n")?;
        }
        let name = format!("{}/{}", Key::of(record), file_name(record));
        self.place.replace(&name, &serde_json::to_vec_pretty(record)?)?;
        Ok(self.place.path(&name))
    }

    /// What there is, in the order of names.
    ///
    /// # Errors
    /// When the store cannot be listed.
    pub(crate) fn keys(&self) -> Result<Vec<Key>, Error> {
        let mut keys = Vec::new();
        for workload in self.folders("")? {
            let machines = self.folders(&workload)?;
            keys.extend(machines.into_iter().map(|machine| Key::new(&workload, &machine)));
        }
        Ok(keys)
    }

    fn folders(&self, folder: &str) -> Result<Vec<String>, Error> {
        let entries = self.place.list(folder)?.into_iter();
        Ok(entries.filter(|entry| entry.is_folder).map(|entry| entry.name).collect())
    }

    /// All records of a key, in the order in which their runs started.
    ///
    /// # Errors
    /// When one cannot be read.
    pub(crate) fn records(&self, key: &Key) -> Result<Vec<Kept>, Error> {
        let folder = key.to_string();
        let promoted = self.promoted(key)?;
        let mut kept = Vec::new();
        for entry in self.place.list(&folder)? {
            if entry.is_folder || entry.name == PROMOTED || !entry.name.ends_with(".json") {
                continue;
            }
            let name = format!("{folder}/{}", entry.name);
            let path = self.place.path(&name);
            let record = record::Record::parse(&path, &self.place.read(&name)?)?;
            let is_promoted = promoted.as_ref().is_none_or(|it| it.records.contains(&entry.name));
            kept.push(Kept { path, record, is_promoted });
        }
        Ok(kept)
    }

    fn promoted(&self, key: &Key) -> Result<Option<Promoted>, Error> {
        let name = format!("{key}/{PROMOTED}");
        if !self.place.exists(&name)? {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&self.place.read(&name)?)?))
    }

    /// Makes the newest records of a key its baseline, and returns how many those are.
    ///
    /// # Errors
    /// When they cannot be read, or the list of them cannot be written.
    pub(crate) fn promote(&self, key: &Key, newest: usize) -> Result<usize, Error> {
        let kept = self.records(key)?;
        let records: BTreeSet<String> =
            kept.iter().rev().take(newest).map(|kept| file_name(&kept.record)).collect();
        let count = records.len();
        let bytes = serde_json::to_vec_pretty(&Promoted { records })?;
        self.place.replace(&format!("{key}/{PROMOTED}"), &bytes)?;
        Ok(count)
    }
}

/// Sorts as runs started; two runs at the same millisecond differ in their losses or their hosts.
fn file_name(record: &Record) -> String {
    let started = record.attempts.first().map_or(0, |attempt| attempt.started_unix_ms);
    let pid = record.ranks.first().map_or(0, |rank| rank.pid);
    let host: String = record.environment.machine.host.chars().map(key::safe).collect();
    format!("{started:013}-{host}-{pid}.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::finished;

    #[test]
    fn a_baseline_is_all_records_until_some_are_promoted() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Baselines::open(folder.path()).is_none());
        let store = Baselines::at(folder.path().to_str().unwrap()).unwrap();
        for night in 0..5 {
            let mut record = finished();
            record.attempts[0].started_unix_ms = 86_400_000 * (night + 1);
            store.add(&record).unwrap();
            store.add(&record).unwrap(); // again: the same file
        }
        let store = Baselines::open(folder.path()).unwrap();
        let [key] = &store.keys().unwrap()[..] else { panic!("one key") };
        assert_eq!(*key, Key::of(&finished()));
        let promoted = || -> Vec<bool> {
            store.records(key).unwrap().iter().map(|kept| kept.is_promoted).collect()
        };
        assert_eq!(promoted(), [true; 5]);
        assert_eq!(store.promote(key, 2).unwrap(), 2);
        assert_eq!(promoted(), [false, false, false, true, true]);
        let mut other = finished();
        other.ranks.pop();
        store.add(&other).unwrap();
        assert_eq!(store.keys().unwrap().len(), 2, "another world size");
    }
}
