//! A store of records: a folder or a prefix of an object store, in which runs of each workload,
//! world size and machine type are kept, and some of them are what new runs are compared with.
//!
//! `WORKLOAD-ID/RANKSxMACHINE/STARTED-RUN.json` is a record, and `PROMOTED.json` beside them names
//! those that are the baseline; without it all are. `COPIED.json` says where copies are from, and
//! which of them only show what a machine was.

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
pub struct Baselines {
    place: Opened,
}

/// A record on file.
#[derive(Debug, Clone)]
pub struct Kept {
    /// Path or URL of its file.
    pub path: PathBuf,
    /// The record.
    pub record: Record,
    /// Whether it belongs to the baseline: a run that failed, or into which faults were injected,
    /// never does.
    pub is_promoted: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Promoted {
    records: BTreeSet<String>,
    /// Of the names; files of older versions have none.
    #[serde(default)]
    digest: Option<String>,
}

impl Baselines {
    /// The store at a path or URL; nothing is touched.
    ///
    /// # Errors
    /// When the URL is not one of an object store that can be used.
    pub fn at(open: OpenStorage, address: &str) -> Result<Self, Error> {
        Ok(Self { place: Opened::at(open, address)? })
    }

    /// The store at a path or URL, if there is one.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn open(open: OpenStorage, address: &Path) -> Result<Option<Self>, Error> {
        let Some(text) = address.to_str() else { return Ok(None) };
        let store = Self::at(open, text)?;
        Ok(store.place.exists(MARKER)?.then_some(store))
    }

    /// Keeps a record; it does not belong to a baseline before it is promoted, unless nothing was.
    /// Returns where it is.
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

    /// Whether the baseline of a key was chosen; else it is all records.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub(crate) fn is_promoted(&self, key: &Key) -> Result<bool, Error> {
        Ok(self.promoted(key)?.is_some())
    }

    /// What there is, in the order of names.
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

    /// All records of a key, in the order in which their runs started.
    ///
    /// # Errors
    /// When one cannot be read, or one that was promoted or copied is gone.
    pub fn records(&self, key: &Key) -> Result<Vec<Kept>, Error> {
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
                return Err(Error::damaged_store(format!(
                    "{}: names {gone}, which is not there",
                    list.display()
                )));
            }
        }
        Ok(kept)
    }

    /// The same where one that cannot be read is not the end.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn read_each(&self, key: &Key) -> Result<Vec<AtPath<Error>>, Error> {
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

    /// Makes the newest comparable runs of a key its baseline, and returns how many those are;
    /// without any the baseline stays.
    ///
    /// # Errors
    /// When they cannot be read, or the list of them cannot be written.
    pub fn promote(&self, key: &Key, newest: usize) -> Result<usize, Error> {
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
        self.place.replace(&format!("{key}/{PROMOTED}"), &pretty(&promoted))
    }
}

/// Sorts as runs started; two runs at the same millisecond differ in their losses or their hosts.
fn file_name(record: &Record) -> String {
    let started = record.started_unix_ms();
    let pid = record.ranks.first().map_or(0, |rank| rank.pid);
    let host: String = record.environment.machine.host.chars().map(key::safe).collect();
    format!("{started:013}-{host}-{pid}.json")
}

/// The content of a list in a store.
fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8], expected: &str) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| {
        Error::damaged_store(format!("{}: expected {expected}: {error}", path.display()))
    })
}

fn pretty(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(value).expect("plain data in memory")
}
