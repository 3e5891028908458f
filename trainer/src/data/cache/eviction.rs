//! Eviction: the least recently used files leave the cache.

use std::collections::HashSet;
use std::fs::{self, FileType};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use record::files::IoError;

use super::entry::{Entry, Object};
use super::{Cache, SHORT_DIGEST_DIGITS};
use crate::data::error::DataError;

/// File that is not needed now.
struct Idle {
    used: SystemTime,
    entry: Entry,
}

impl Cache {
    /// Removes other files until the cache with these objects is within its limit.
    pub(super) fn evict(&self, objects: &[Object]) -> Result<(), DataError> {
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
        self.remove_orphans();
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

    /// Removes files without an entry, as a killed download leaves them: they would never count or
    /// be removed otherwise. A file that cannot be removed stays, with a warning.
    fn remove_orphans(&self) {
        let Ok(entries) = self.entries() else { return };
        let read = entries.iter().map(|path| Some(self.file(&Entry::read(path)?.url)));
        // The file of an entry that cannot be read now may be intact.
        let Some(known) = read.collect::<Option<HashSet<PathBuf>>>() else { return };
        let folders = paths_in(&self.folder.join("files")).unwrap_or_default();
        let is_file = |path: &PathBuf| is_a(path, FileType::is_file);
        for folder in folders.iter().filter(|folder| is_own(folder)) {
            let files = paths_in(folder).unwrap_or_default().into_iter().filter(is_file);
            for orphan in files.filter(|file| !known.contains(file)) {
                if let Err(error) = fs::remove_file(&orphan) {
                    tracing::warn!("{}: cannot remove: {error}", orphan.display());
                }
            }
        }
    }

    fn idle(&self, needed: &HashSet<PathBuf>) -> Result<Vec<Idle>, IoError> {
        let paths = self.entries()?.into_iter();
        Ok(paths.filter(|path| !needed.contains(path)).filter_map(|path| idle(&path)).collect())
    }

    /// Returns the complete entries, without those that a kill has left half written.
    fn entries(&self) -> Result<Vec<PathBuf>, IoError> {
        let mut paths = paths_in(&self.folder.join("objects"))?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        Ok(paths)
    }
}

/// Returns whether downloads go to a folder.
fn is_own(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    name.len() == SHORT_DIGEST_DIGITS
        && name.bytes().all(|digit| digit.is_ascii_hexdigit())
        && is_a(folder, FileType::is_dir)
}

/// Returns whether a path has this type; a link is neither a file nor a folder.
fn is_a(path: &Path, kind: fn(&FileType) -> bool) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| kind(&metadata.file_type()))
}

fn paths_in(folder: &Path) -> Result<Vec<PathBuf>, IoError> {
    let listed = fs::read_dir(folder).map_err(IoError::at(folder, "list"))?;
    Ok(listed.filter_map(|item| Some(item.ok()?.path())).collect())
}

fn idle(entry_path: &Path) -> Option<Idle> {
    let used = fs::metadata(entry_path).and_then(|metadata| metadata.modified()).ok()?;
    Some(Idle { used, entry: Entry::read(entry_path)? })
}
