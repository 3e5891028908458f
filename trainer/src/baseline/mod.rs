//! A store of records: a folder or a prefix of an object store, in which runs of each workload,
//! world size and machine type are kept, and some of them are what new runs are compared with.
//!
//! `WORKLOAD-ID/RANKSxMACHINE/STARTED-RUN.json` is a record, and `PROMOTED.json` beside them names
//! those that are the baseline; without it all are. `COPIED.json` says where copies are from, and
//! which of them only show what a machine was.

mod changed;
mod copied;
mod key;
mod summary;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use checkpoint::tier::Tier;
use record::files::Mode;
use serde::{Deserialize, Serialize};

pub(crate) use changed::machine_of;
use copied::COPIED;
pub(crate) use key::Key;
pub(crate) use summary::Summary;

use crate::checkpoints::open::place_with;
use record::limits::{LIST_BYTES_MAX, RECORD_BYTES_MAX};
use record::{AtPath, Record, seal};

/// The file that says what a folder is.
const MARKER: &str = "BASELINES";

/// The file that names the records of a baseline.
const PROMOTED: &str = "PROMOTED.json";

/// The file that says that there is one: without it, all records would be the baseline.
const LISTED: &str = "LISTED";

const REPROMOTE: &str = "`yardstick baseline promote` makes it anew";

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
    /// Whether it belongs to the baseline: a run that failed, or into which faults were injected,
    /// never does.
    pub(crate) is_promoted: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Promoted {
    records: BTreeSet<String>,
    /// Of the names; files of older versions have none.
    #[serde(default)]
    digest: Option<String>,
}

/// Why a store cannot be used.
pub(crate) type Error = anyhow::Error;

impl Baselines {
    /// The store at a path or URL; nothing is touched.
    ///
    /// # Errors
    /// When the URL is not one of an object store that can be used.
    pub(crate) fn at(address: &str) -> Result<Self, Error> {
        Ok(Self { place: place_with(address, Duration::MAX, Mode::Umask)? })
    }

    /// The store at a path or URL, if there is one.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub(crate) fn open(address: &Path) -> Result<Option<Self>, Error> {
        let Some(text) = address.to_str() else { return Ok(None) };
        let store = Self::at(text)?;
        Ok(store.place.exists(MARKER)?.then_some(store))
    }

    /// Keeps a record; it does not belong to a baseline before it is promoted, unless nothing was.
    /// Returns where it is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn add(&self, record: &Record) -> Result<PathBuf, Error> {
        self.create()?;
        let name = format!("{}/{}", Key::of(record), file_name(record));
        self.place.replace(&name, &serde_json::to_vec_pretty(&record.sealed())?)?;
        Ok(self.place.path(&name))
    }

    /// Marks the place as a store, which may be empty.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn create(&self) -> Result<(), Error> {
        if !self.place.exists(MARKER)? {
            self.place.replace(MARKER, b"Records of yardstick; see `yardstick baseline`.\n")?;
        }
        Ok(())
    }

    /// Whether the baseline of a key was chosen; else it is all records.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub(super) fn is_promoted(&self, key: &Key) -> Result<bool, Error> {
        Ok(self.promoted(key)?.is_some())
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
    /// When one cannot be read, or one that was promoted or copied is gone.
    pub(crate) fn records(&self, key: &Key) -> Result<Vec<Kept>, Error> {
        let promoted: Option<BTreeSet<String>> = self.promoted(key)?.map(|it| it.records);
        let copied = self.copied(key)?;
        let mut kept = Vec::new();
        let mut found = BTreeSet::new();
        for (path, record) in self.read_each(key)? {
            let record = record?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_named = match (&promoted, &copied) {
                (Some(promoted), _) => promoted.contains(&name),
                (None, Some(copied)) => copied.records.contains(&name),
                (None, None) => true,
            };
            kept.push(Kept { is_promoted: is_named && record.is_measured(), record, path });
            found.insert(name);
        }
        let of_copies =
            copied.map(|it| it.records.into_iter().chain(it.oldest_of_machines).collect());
        for (list, names) in [(PROMOTED, promoted), (COPIED, of_copies)] {
            if let Some(gone) = names.iter().flatten().find(|name| !found.contains(*name)) {
                let list = self.place.path(&format!("{key}/{list}"));
                anyhow::bail!("{}: names {gone}, which is not there", list.display());
            }
        }
        Ok(kept)
    }

    /// The same where one that cannot be read is not the end.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub(crate) fn read_each(&self, key: &Key) -> Result<Vec<AtPath<Error>>, Error> {
        let folder = key.to_string();
        let mut found = Vec::new();
        for entry in self.place.list(&folder)? {
            let is_list = [PROMOTED, COPIED].contains(&entry.name.as_str());
            if entry.is_folder || is_list || !entry.name.ends_with(".json") {
                continue;
            }
            let name = format!("{folder}/{}", entry.name);
            let path = self.place.path(&name);
            let bytes = self.place.read(&name, RECORD_BYTES_MAX).map_err(Error::from);
            let record = bytes.and_then(|bytes| Ok(Record::parse(&path, &bytes)?));
            found.push((path, record));
        }
        Ok(found)
    }

    fn promoted(&self, key: &Key) -> Result<Option<Promoted>, Error> {
        let name = format!("{key}/{PROMOTED}");
        let path = self.place.path(&name);
        let is_listed = self.place.exists(&format!("{key}/{LISTED}"))?;
        if !self.place.exists(&name)? {
            anyhow::ensure!(!is_listed, "{}: is missing: {REPROMOTE}", path.display());
            return Ok(None);
        }
        let bytes = self.place.read(&name, LIST_BYTES_MAX)?;
        let promoted: Promoted = serde_json::from_slice(&bytes)
            .with_context(|| format!("{}: expected names of records", path.display()))?;
        seal::check(&path, &bytes)?;
        let names_some = !promoted.records.is_empty();
        anyhow::ensure!(names_some, "{}: names no record: {REPROMOTE}", path.display());
        Ok(Some(promoted))
    }

    /// Makes the newest comparable runs of a key its baseline, and returns how many those are;
    /// without any the baseline stays.
    ///
    /// # Errors
    /// When they cannot be read, or the list of them cannot be written.
    pub(crate) fn promote(&self, key: &Key, newest: usize) -> Result<usize, Error> {
        // What was promoted before may be gone.
        let kept: Result<Vec<Record>, Error> =
            self.read_each(key)?.into_iter().map(|(_, record)| record).collect();
        let kept = kept?;
        let measured = kept.iter().rev().filter(|record| record.is_measured());
        let records: BTreeSet<String> = measured.take(newest).map(file_name).collect();
        let count = records.len();
        if count > 0 {
            self.write_promoted(key, records)?;
        }
        Ok(count)
    }

    fn write_promoted(&self, key: &Key, records: BTreeSet<String>) -> Result<(), Error> {
        let mut promoted = Promoted { records, digest: None };
        promoted.digest = Some(seal::digest(&promoted));
        self.place.replace(&format!("{key}/{LISTED}"), b"see PROMOTED.json\n")?;
        let bytes = serde_json::to_vec_pretty(&promoted)?;
        Ok(self.place.replace(&format!("{key}/{PROMOTED}"), &bytes)?)
    }
}

/// Sorts as runs started; two runs at the same millisecond differ in their losses or their hosts.
fn file_name(record: &Record) -> String {
    let started = record.started_unix_ms();
    let pid = record.ranks.first().map_or(0, |rank| rank.pid);
    let host: String = record.environment.machine.host.chars().map(key::safe).collect();
    format!("{started:013}-{host}-{pid}.json")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use record::fixtures::comparable;

    #[test]
    fn a_copied_baseline_does_not_change_with_its_store() {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [store, copy] =
            [0, 1].map(|index| Baselines::at(folders[index].path().to_str().unwrap()).unwrap());
        let of_night = |night: u64| {
            let mut record = comparable();
            record.attempts[0].started_unix_ms = 86_400_000 * night;
            record
        };
        for night in 0..=3 {
            store.add(&of_night(night)).unwrap();
        }
        let key = Key::of(&comparable());
        store.promote(&key, 3).unwrap();
        copy.copy(&store, &key, &store.records(&key).unwrap(), 2).unwrap();
        store.add(&of_night(4)).unwrap();
        store.promote(&key, 1).unwrap();
        let records = Baselines::open(folders[1].path()).unwrap().unwrap().records(&key).unwrap();
        let records: Vec<_> =
            records.into_iter().map(|kept| (kept.record, kept.is_promoted)).collect();
        let expected = [(0, false), (2, true), (3, true)]; // the first shows what the machines were
        assert_eq!(records, expected.map(|(night, is)| (of_night(night).sealed(), is)));
    }

    #[test]
    fn records_and_lists_that_are_too_large_are_refused_unread() {
        for name in [PROMOTED, COPIED, "1.json"] {
            let folder = tempfile::tempdir().unwrap();
            let store = Baselines::at(folder.path().to_str().unwrap()).unwrap();
            store.add(&comparable()).unwrap();
            let key = Key::of(&comparable());
            let path = folder.path().join(key.to_string()).join(name);
            std::fs::File::create(path).unwrap().set_len(3 << 30).unwrap();
            let error = store.records(&key).unwrap_err().to_string();
            assert!(error.contains(&format!("{name}: cannot read: expected at most ")), "{error}");
        }
    }

    /// Several users add to a store.
    #[test]
    fn files_of_a_store_have_the_mode_of_the_umask() {
        let folder = tempfile::tempdir().unwrap();
        let store = Baselines::at(folder.path().to_str().unwrap()).unwrap();
        let path = store.add(&comparable()).unwrap();
        let usual = folder.path().join("usual");
        std::fs::write(&usual, "").unwrap();
        let mode = |path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&usual));
    }

    #[test]
    fn a_run_that_failed_is_never_a_baseline() {
        let folder = tempfile::tempdir().unwrap();
        let store = Baselines::at(folder.path().to_str().unwrap()).unwrap();
        store.add(&comparable()).unwrap();
        let key = Key::of(&comparable());
        for night in 1..=3 {
            let mut record = comparable();
            record.attempts[0].started_unix_ms += 86_400_000 * night;
            record.status = record::Status::Failed;
            store.add(&record).unwrap();
        }
        let baseline = || {
            let kept = store.records(&key).unwrap();
            let count = kept.iter().filter(|kept| kept.is_promoted).count();
            (count, Summary::of(key.to_string(), &kept).map(|summary| summary.records))
        };
        assert_eq!(baseline(), (1, Some(4)), "nothing is promoted");
        assert_eq!(store.promote(&key, 2).unwrap(), 1);
        assert_eq!(baseline(), (1, Some(4)));
        std::fs::remove_file(&store.records(&key).unwrap()[0].path).unwrap();
        assert_eq!(store.promote(&key, 2).unwrap(), 0);
        let error = store.records(&key).unwrap_err().to_string();
        assert!(error.contains("PROMOTED.json: names ") && error.contains("not there"), "{error}");
    }

    #[test]
    fn a_baseline_is_all_records_until_some_are_promoted() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Baselines::open(folder.path()).unwrap().is_none());
        let store = Baselines::at(folder.path().to_str().unwrap()).unwrap();
        for night in 0..5 {
            let mut record = comparable();
            record.attempts[0].started_unix_ms = 86_400_000 * (night + 1);
            store.add(&record).unwrap();
            store.add(&record).unwrap(); // again: the same file
        }
        let store = Baselines::open(folder.path()).unwrap().unwrap();
        let [key] = &store.keys().unwrap()[..] else { panic!("one key") };
        assert_eq!(*key, Key::of(&comparable()));
        let promoted = || -> Vec<bool> {
            store.records(key).unwrap().iter().map(|kept| kept.is_promoted).collect()
        };
        assert_eq!(promoted(), [true; 5]);
        assert_eq!(store.promote(key, 2).unwrap(), 2);
        assert_eq!(promoted(), [false, false, false, true, true]);
        let mut other = comparable();
        other.ranks.pop();
        store.add(&other).unwrap();
        assert_eq!(store.keys().unwrap().len(), 2, "another world size");
    }
}
