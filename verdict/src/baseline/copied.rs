//! Baselines that are copies of records of another store.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::changed::first_of_machines;
use super::{Baselines, Key, StoredRecord, file_name, parse, pretty};
use crate::error::Error;
use record::limits::LIST_BYTES_MAX;
use record::{Record, seal};

/// File with the origin of copied records.
pub(super) const COPIED: &str = "COPIED.json";

/// Marker that a `COPIED.json` must exist.
const ARE_COPIES: &str = "ARE_COPIES";

/// Origin of copied records.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Copied {
    /// Folder or prefix of the original records.
    pub(super) from: String,
    /// Start of the oldest comparable run there, which may not be among the copies; `None` if there
    /// is none.
    pub(super) since_unix_ms: Option<u64>,
    /// Names of the copies that are the baseline.
    pub(super) records: BTreeSet<String>,
    /// Names of the copies that only show the earlier state of each machine.
    pub(super) oldest_of_machines: BTreeSet<String>,
    digest: Option<String>,
}

impl Baselines {
    /// Keeps copies of the newest records of another store's baseline as the baseline of this key,
    /// which later additions, promotions and removals there do not change. It also keeps the oldest
    /// record of each machine, which shows whether the machine has changed. `kept` are all original
    /// records.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn copy(
        &self,
        from: &Self,
        key: &Key,
        kept: &[StoredRecord],
        newest: usize,
    ) -> Result<(), Error> {
        if kept.is_empty() {
            return Ok(());
        }
        let promoted = kept.iter().rev().filter(|kept| kept.is_promoted);
        let promoted: Vec<&Record> = promoted.map(|kept| &kept.record).take(newest).collect();
        let names: BTreeSet<String> = promoted.iter().copied().map(file_name).collect();
        let is_other = |record: &&Record| !names.contains(&file_name(record));
        let oldest_of_machines = first_of_machines(kept.iter().map(|kept| &kept.record));
        let oldest_of_machines: Vec<_> = oldest_of_machines.into_iter().filter(is_other).collect();
        let origin = match from.copied(key)? {
            Some(earlier) => earlier.from,
            None => from.place.path(&key.to_string()).display().to_string(),
        };
        let mut copied = Copied {
            from: origin,
            since_unix_ms: from.since(key, kept)?,
            records: names.clone(),
            oldest_of_machines: oldest_of_machines.iter().copied().map(file_name).collect(),
            digest: None,
        };
        copied.digest = Some(seal::digest(&copied));
        let bytes = pretty(&copied);
        // The origin is written first, so that incomplete copies are never taken for complete.
        self.place.replace(&format!("{key}/{ARE_COPIES}"), b"see COPIED.json\n")?;
        self.place.replace(&format!("{key}/{COPIED}"), &bytes)?;
        for record in promoted.iter().chain(&oldest_of_machines) {
            self.add(record)?;
        }
        if !names.is_empty() && from.is_promoted(key)? {
            self.write_promoted(key, names)?;
        }
        Ok(())
    }

    /// Reads the origin of the records of a key; `None` if they are not copies.
    ///
    /// # Errors
    /// When it cannot be read, or was changed.
    pub(super) fn copied(&self, key: &Key) -> Result<Option<Copied>, Error> {
        let name = format!("{key}/{COPIED}");
        let path = self.place.path(&name);
        if !self.place.exists(&name)? {
            let are_copies = self.place.exists(&format!("{key}/{ARE_COPIES}"))?;
            return match are_copies {
                true => Err(Error::damaged_store(format!(
                    "{}: is missing: copy the baseline again",
                    path.display()
                ))),
                false => Ok(None),
            };
        }
        let bytes = self.place.read(&name, LIST_BYTES_MAX)?;
        let copied: Copied = parse(&path, &bytes, "the origin of copies")?;
        if copied.digest.is_none() {
            return Err(Error::damaged_store(format!("{}: has no digest", path.display())));
        }
        seal::check(&path, &bytes)?;
        Ok(Some(copied))
    }

    /// Finds the start of the first comparable run of a key, by all its records.
    ///
    /// # Errors
    /// When the origin of copies cannot be read.
    pub(super) fn since(&self, key: &Key, kept: &[StoredRecord]) -> Result<Option<u64>, Error> {
        let copied = self.copied(key)?.and_then(|copied| copied.since_unix_ms);
        let records = kept.iter().map(|kept| &kept.record);
        Ok(records
            .filter(|record| record.is_measured())
            .map(Record::started_unix_ms)
            .chain(copied)
            .min())
    }
}
