//! Room for files: those that were not used for the longest time leave the cache.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use checkpoint::durable::IoError;

use super::entry::{Entry, Object};
use super::{Cache, SHORT_DIGEST_DIGITS};
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
        self.remove_orphans(objects, &idle)?;
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

    /// Removes files that no entry names, as a killed download leaves them: they would count for
    /// nothing, and stay.
    fn remove_orphans(&self, needed: &[Object], idle: &[Idle]) -> Result<(), IoError> {
        let needed = needed.iter().map(|object| &object.url);
        let urls = needed.chain(idle.iter().map(|idle| &idle.entry.url));
        let known: HashSet<PathBuf> = urls.map(|url| self.file(url)).collect();
        for folder in entries_of(&self.folder.join("files"))? {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            let is_own = name.len() == SHORT_DIGEST_DIGITS
                && name.bytes().all(|digit| digit.is_ascii_hexdigit());
            let files = if is_own { entries_of(&folder)? } else { Vec::new() };
            for orphan in files.into_iter().filter(|file| !known.contains(file)) {
                tracing::info!("removes {}: no download completed it", orphan.display());
                fs::remove_file(&orphan).map_err(IoError::at(&orphan, "remove"))?;
            }
        }
        Ok(())
    }

    fn idle(&self, needed: &HashSet<PathBuf>) -> Result<Vec<Idle>, IoError> {
        let paths = entries_of(&self.folder.join("objects"))?.into_iter();
        Ok(paths.filter(|path| !needed.contains(path)).filter_map(|path| idle(&path)).collect())
    }
}

fn entries_of(folder: &Path) -> Result<Vec<PathBuf>, IoError> {
    let listed = fs::read_dir(folder).map_err(IoError::at(folder, "list"))?;
    Ok(listed.filter_map(|item| Some(item.ok()?.path())).collect())
}

fn idle(entry_path: &Path) -> Option<Idle> {
    let used = fs::metadata(entry_path).and_then(|metadata| metadata.modified()).ok()?;
    Some(Idle { used, entry: Entry::read(entry_path)? })
}
