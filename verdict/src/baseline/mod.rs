//! A store of records: a folder or a prefix of an object store, which keeps runs of each workload,
//! world size and machine type. Some of them are the baseline of new runs.
//!
//! `WORKLOAD-ID/RANKSxMACHINE/STARTED-RUN.json` is a record, and `PROMOTED.json` beside the records
//! names those that are the baseline; without it all are. `COPIED.json` names the origin of copies,
//! and those that only show the earlier state of a machine.

mod changed;
mod copied;
#[cfg(any(test, feature = "fixtures"))]
mod folder;
mod key;
mod storage;
mod summary;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub use changed::machine_of;
use copied::COPIED;
#[cfg(any(test, feature = "fixtures"))]
pub use folder::open_folder;
pub use key::Key;
use storage::Opened;
pub use storage::{Entry, OpenStorage, Storage, StorageError};
pub use summary::Summary;

use crate::error::Error;
use record::limits::{LIST_BYTES_MAX, RECORD_BYTES_MAX};
use record::{LoadedRecord, Record, seal};

/// Marker file of a store.
const MARKER: &str = "BASELINES";

/// File with the names of a baseline's records.
const PROMOTED: &str = "PROMOTED.json";

/// Marker that a `PROMOTED.json` must exist: without it, all records would be the baseline.
const LISTED: &str = "LISTED";

const REPROMOTE: &str = "`yardstick baseline promote` makes it anew";

/// A store of baselines.
#[derive(Debug)]
pub struct Baselines {
    place: Opened,
}

/// A stored record.
#[derive(Debug, Clone)]
pub struct StoredRecord {
    /// Path or URL of its file.
    pub path: PathBuf,
    /// The record.
    pub record: Record,
    /// True if the record belongs to the baseline: a run that failed, or into which faults were
    /// injected, never does.
    pub is_promoted: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Promoted {
    records: BTreeSet<String>,
    /// Digest of the names; files of older versions have none.
    #[serde(default)]
    digest: Option<String>,
}

impl Baselines {
    /// Returns the store at a path or URL, without any access to it.
    ///
    /// # Errors
    /// When the URL is not that of a usable object store.
    pub fn at(open: OpenStorage, address: &str) -> Result<Self, Error> {
        Ok(Self { place: Opened::at(open, address)? })
    }

    /// Opens the store at a path or URL, if there is one.
    ///
    /// # Errors
    /// When that cannot be determined.
    pub fn open(open: OpenStorage, address: &Path) -> Result<Option<Self>, Error> {
        let Some(text) = address.to_str() else { return Ok(None) };
        let store = Self::at(open, text)?;
        Ok(store.place.exists(MARKER)?.then_some(store))
    }

    /// Adds a record and returns its path. It does not belong to a baseline before it is promoted,
    /// unless none was promoted.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&self, record: &Record) -> Result<PathBuf, Error> {
        self.create()?;
        let name = format!("{}/{}", Key::of(record), file_name(record));
        self.place.replace(&name, &pretty(&record.sealed()))?;
        Ok(self.place.path(&name))
    }

    /// Marks the place as a store, which may be empty.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(&self) -> Result<(), Error> {
        if !self.place.exists(MARKER)? {
            self.place.replace(MARKER, b"Records of yardstick; see `yardstick baseline`.\n")?;
        }
        Ok(())
    }

    /// Returns whether the baseline of a key was promoted; otherwise it is all records.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub(crate) fn is_promoted(&self, key: &Key) -> Result<bool, Error> {
        Ok(self.promoted(key)?.is_some())
    }

    /// Lists the keys in the order of their names.
    ///
    /// # Errors
    /// When the store cannot be listed.
    pub fn keys(&self) -> Result<Vec<Key>, Error> {
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

    /// Reads all records of a key, in the order in which their runs started. Those that an earlier
    /// version stored under this key, and that have another one today, are left out: their runs did
    /// other work.
    ///
    /// # Errors
    /// When a record cannot be read, or one that was promoted or copied is gone.
    pub fn records(&self, key: &Key) -> Result<Vec<StoredRecord>, Error> {
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
            found.insert(name);
            if Key::of(&record) == *key {
                let is_promoted = is_named && record.is_measured();
                kept.push(StoredRecord { is_promoted, record, path });
            }
        }
        let of_copies =
            copied.map(|it| it.records.into_iter().chain(it.oldest_of_machines).collect());
        for (list, names) in [(PROMOTED, promoted), (COPIED, of_copies)] {
            if let Some(gone) = names.iter().flatten().find(|name| !found.contains(*name)) {
                let list = self.place.path(&format!("{key}/{list}"));
                return Err(Error::damaged_store(format!(
                    "{}: names {gone}, which does not exist",
                    list.display()
                )));
            }
        }
        Ok(kept)
    }

    /// Reads all records of a key, with an error for each unreadable record.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn read_each(&self, key: &Key) -> Result<Vec<LoadedRecord<Error>>, Error> {
        let folder = key.to_string();
        let mut found = Vec::new();
        for entry in self.place.list(&folder)? {
            let is_list = [PROMOTED, COPIED].contains(&entry.name.as_str());
            if entry.is_folder || is_list || !entry.name.ends_with(".json") {
                continue;
            }
            let name = format!("{folder}/{}", entry.name);
            let path = self.place.path(&name);
            let bytes = self.place.read(&name, RECORD_BYTES_MAX);
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
            return match is_listed {
                true => Err(Error::damaged_store(format!(
                    "{}: is missing: {REPROMOTE}",
                    path.display()
                ))),
                false => Ok(None),
            };
        }
        let bytes = self.place.read(&name, LIST_BYTES_MAX)?;
        let promoted: Promoted = parse(&path, &bytes, "names of records")?;
        seal::check(&path, &bytes)?;
        if promoted.records.is_empty() {
            return Err(Error::damaged_store(format!(
                "{}: names no record: {REPROMOTE}",
                path.display()
            )));
        }
        Ok(Some(promoted))
    }

    /// Makes the newest comparable runs of a key its baseline, and returns their number; if there
    /// are none, the baseline stays.
    ///
    /// # Errors
    /// When they cannot be read, or their list cannot be written.
    pub fn promote(&self, key: &Key, newest: usize) -> Result<usize, Error> {
        // Promoted records may be gone.
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
        self.place.replace(&format!("{key}/{PROMOTED}"), &pretty(&promoted))
    }
}

/// Names files in the order of starts; two runs at the same millisecond differ in losses or hosts.
fn file_name(record: &Record) -> String {
    let started = record.started_unix_ms();
    let pid = record.ranks.first().map_or(0, |rank| rank.pid);
    let host: String = record.environment.machine.host.chars().map(key::safe).collect();
    format!("{started:013}-{host}-{pid}.json")
}

/// Parses a list of a store.
fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8], expected: &str) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| {
        Error::damaged_store(format!("{}: expected {expected}: {error}", path.display()))
    })
}

fn pretty(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(value).expect("plain data in memory")
}
