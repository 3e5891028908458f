//! Which files leave the cache when others come: those that were not used for the longest time.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use checkpoint::durable::IoError;

use super::Cache;
use super::entry::{Entry, Object};
use crate::data::error::DataError;

/// A file that is not needed now.
struct Idle {
    used: SystemTime,
    entry: Entry,
}

impl Cache {
    /// Removes other files until the cache with these objects is within its limit.
    pub(super) fn make_room(&self, objects: &[Object]) -> Result<(), DataError> {
        let needed: HashSet<_> =
            objects.iter().map(|object| self.entry_path(&object.url)).collect();
        let needed_bytes: u64 = objects.iter().map(|object| object.info.size_bytes).sum();
        if needed_bytes > self.limit_bytes {
            return Err(DataError::BadCache {
                folder: self.folder.clone(),
                expected: format!(
                    "run.data_cache_bytes of at least {needed_bytes}, the size of this run's files"
                ),
                found: self.limit_bytes.to_string(),
            });
        }
        let mut idle = self.idle(&needed)?;
        idle.sort_by_key(|idle| idle.used);
        let mut bytes: u64 =
            needed_bytes + idle.iter().map(|idle| idle.entry.size_bytes).sum::<u64>();
        for Idle { entry, .. } in idle {
            if bytes <= self.limit_bytes {
                break;
            }
            self.discard(&entry.url)?;
            bytes -= entry.size_bytes;
        }
        Ok(())
    }

    fn idle(&self, needed: &HashSet<PathBuf>) -> Result<Vec<Idle>, IoError> {
        let folder = self.folder.join("objects");
        let listed = fs::read_dir(&folder).map_err(IoError::at(&folder, "list"))?;
        let paths = listed.filter_map(|item| Some(item.ok()?.path()));
        Ok(paths.filter(|path| !needed.contains(path)).filter_map(|path| idle(&path)).collect())
    }
}

fn idle(entry_path: &Path) -> Option<Idle> {
    let used = fs::metadata(entry_path).and_then(|metadata| metadata.modified()).ok()?;
    Some(Idle { used, entry: Entry::read(entry_path)? })
}
