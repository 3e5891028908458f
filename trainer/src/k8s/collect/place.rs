//! Where results are: the claim of a site, mounted or copied, or an object store.

use std::path::Path;

use crate::baseline::{self, Baselines};
use crate::record::Record;

/// A record, and what its run is called.
#[derive(Debug, Clone)]
pub(crate) struct Collected {
    pub(crate) name: String,
    pub(crate) record: Record,
}

impl Collected {
    /// All records of a folder with runs, or of a store of records at a path or URL.
    ///
    /// # Errors
    /// When there is none, or one cannot be read.
    pub(crate) fn read_all(place: &str) -> Result<Vec<Self>, baseline::Error> {
        let path = Path::new(place);
        let is_store = checkpoint::remote::is_remote(place) || Baselines::open(path).is_some();
        if is_store { Self::of_store(&Baselines::at(place)?) } else { Self::of_folder(path) }
    }

    fn of_store(store: &Baselines) -> Result<Vec<Self>, baseline::Error> {
        let mut all = Vec::new();
        for key in store.keys()? {
            let kept = store.records(&key)?.into_iter();
            all.extend(kept.map(|kept| Self { name: stem(&kept.path), record: kept.record }));
        }
        anyhow::ensure!(!all.is_empty(), "expected records, found none");
        Ok(all)
    }

    /// The folder of a run is its name.
    fn of_folder(path: &Path) -> Result<Vec<Self>, baseline::Error> {
        let named = |(path, record): (std::path::PathBuf, Record)| {
            let is_of_folder = path.file_name().is_some_and(|name| name == "record.json");
            let folder = path.parent().filter(|_| is_of_folder);
            Self { name: stem(folder.unwrap_or(&path)), record }
        };
        Ok(Record::read_all(path)?.into_iter().map(named).collect())
    }
}

fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_suffix(".json").unwrap_or(&name).to_owned()
}
