//! Stores of records in folders and object stores, the places that checkpoints can be in.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use checkpoint::tier::Tier;
use record::Record;
use record::files::Mode;
use verdict::baseline::{Baselines, Entry, Storage, StorageError};

use trainer::checkpoints::open::place_with;

/// Store of records on a tier.
#[derive(Debug)]
struct TierStorage(Arc<dyn Tier>);

/// Opens the store at a path or URL, without accessing it.
///
/// # Errors
/// If a URL is not that of a usable object store.
pub(super) fn open(address: &str) -> Result<Box<dyn Storage>, StorageError> {
    Ok(Box::new(TierStorage(place_with(address, Duration::MAX, Mode::Umask)?)))
}

/// Adds the record of a run to the store at a path or URL.
///
/// # Errors
/// If it cannot be written.
pub(super) fn keep(address: &str, record: &Record) -> Result<(), anyhow::Error> {
    Baselines::at(open, address)?.add(record)?;
    Ok(())
}

impl Storage for TierStorage {
    fn list(&self, folder: &str) -> Result<Vec<Entry>, StorageError> {
        let entry =
            |entry: checkpoint::tier::Entry| Entry { name: entry.name, is_folder: entry.is_folder };
        Ok(self.0.list(folder)?.into_iter().map(entry).collect())
    }

    fn exists(&self, name: &str) -> Result<bool, StorageError> {
        Ok(self.0.exists(name)?)
    }

    fn read(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, StorageError> {
        Ok(self.0.read(name, bytes_max)?)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        Ok(self.0.replace(name, bytes)?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use record::fixtures::comparable;
    use verdict::baseline::{Baselines, Key, Summary};

    use super::*;

    #[test]
    fn a_copied_baseline_does_not_change_with_its_store() {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [store, copy] = [0, 1]
            .map(|index| Baselines::at(open, folders[index].path().to_str().unwrap()).unwrap());
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
        let records =
            Baselines::open(open, folders[1].path()).unwrap().unwrap().records(&key).unwrap();
        let records: Vec<_> =
            records.into_iter().map(|kept| (kept.record, kept.is_promoted)).collect();
        let expected = [(0, false), (2, true), (3, true)]; // the first shows what the machines were
        assert_eq!(records, expected.map(|(night, is)| (of_night(night).sealed(), is)));
    }

    #[test]
    fn records_and_lists_that_are_too_large_are_refused_unread() {
        for name in ["PROMOTED.json", "COPIED.json", "1.json"] {
            let folder = tempfile::tempdir().unwrap();
            let store = Baselines::at(open, folder.path().to_str().unwrap()).unwrap();
            store.add(&comparable()).unwrap();
            let key = Key::of(&comparable());
            let path = folder.path().join(key.to_string()).join(name);
            std::fs::File::create(path).unwrap().set_len(3 << 30).unwrap();
            let error = store.records(&key).unwrap_err().to_string();
            assert!(error.contains(&format!("{name}: cannot read: expected at most ")), "{error}");
        }
    }

    /// Checks that files follow the umask: several users add to a store.
    #[test]
    fn files_of_a_store_have_the_mode_of_the_umask() {
        let folder = tempfile::tempdir().unwrap();
        let store = Baselines::at(open, folder.path().to_str().unwrap()).unwrap();
        let path = store.add(&comparable()).unwrap();
        let usual = folder.path().join("usual");
        std::fs::write(&usual, "").unwrap();
        let mode = |path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&usual));
    }

    #[test]
    fn a_run_that_failed_is_never_a_baseline() {
        let folder = tempfile::tempdir().unwrap();
        let store = Baselines::at(open, folder.path().to_str().unwrap()).unwrap();
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
        assert!(
            error.contains("PROMOTED.json: names ") && error.contains("does not exist"),
            "{error}"
        );
    }

    #[test]
    fn a_baseline_is_all_records_until_some_are_promoted() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Baselines::open(open, folder.path()).unwrap().is_none());
        let store = Baselines::at(open, folder.path().to_str().unwrap()).unwrap();
        for night in 0..5 {
            let mut record = comparable();
            record.attempts[0].started_unix_ms = 86_400_000 * (night + 1);
            store.add(&record).unwrap();
            store.add(&record).unwrap(); // again: the same file
        }
        let store = Baselines::open(open, folder.path()).unwrap().unwrap();
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
