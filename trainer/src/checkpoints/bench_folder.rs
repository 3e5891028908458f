//! Folders in which tiers are measured: their names, the lock on a folder in use, and the removal
//! of folders that a killed process has left.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use checkpoint::tier::Tier;
use record::files::{IoError, Mode, create_folders, regular_file};

use record::text::unix_time::unix_ms;

const PREFIX: &str = "yardstick-bench-";

/// File that is locked as long as the folder is in use.
pub(super) const LOCK: &str = "lock";

/// Age at which a folder counts as abandoned, as not every file system shows locks of other nodes:
/// no measurement takes so long.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Returns the name of a new folder. Nodes may begin at the same moment, and pods have equal
/// process ids.
pub(super) fn new_name() -> String {
    let [host, process] = [record::machine::host_name(), std::process::id().to_string()];
    format!("{PREFIX}{host}-{process}-{:x}", unix_ms())
}

/// Creates the folder and locks it, if the file system has locks, for as long as the file lives.
pub(super) fn locked(folder: &Path) -> Result<File, IoError> {
    create_folders(folder, Mode::Run)?;
    let file = regular_file::open_to_append(&folder.join(LOCK), Mode::Run)?;
    // Nobody else has this name; without locks, no other process removes the folder.
    let _ = file.try_lock();
    Ok(file)
}

/// Removes folders that killed processes have left below a root, as far as permissions allow.
pub(super) fn remove_abandoned(tier: &dyn Tier, root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_folder && is_old(&name) && !may_be_in_use(&entry.path()) {
            // Other nodes may remove it at the same moment.
            let _ = tier.delete_folder(&name, LOCK);
        }
    }
}

/// Returns whether a name is that of an abandoned folder.
fn is_old(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let parts: Vec<_> = rest.rsplitn(3, '-').collect();
    let [time, process, host] = parts.as_slice() else { return false };
    let begun = u64::from_str_radix(time, 16).ok().filter(|_| process.parse::<u32>().is_ok());
    let end = |begun: u64| begun.saturating_add(ABANDONED_AFTER.as_millis() as u64);
    !host.is_empty() && begun.is_some_and(|begun| end(begun) < unix_ms())
}

/// Returns whether the folder is, or may be, locked. Without a lock file it is not in use.
fn may_be_in_use(folder: &Path) -> bool {
    match regular_file::open_to_write(&folder.join(LOCK)) {
        Ok(file) => {
            matches!(file.try_lock(), Err(TryLockError::WouldBlock | TryLockError::Error(_)))
        }
        Err(error) => error.source.kind() != ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoints::open::place;

    #[test]
    fn only_old_folders_that_nobody_uses_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let old = format!("{:x}", unix_ms() - 25 * 3_600_000);
        let young = format!("{:x}", unix_ms() - 23 * 3_600_000);
        let folder = |name: &str| {
            let path = root.path().join(name);
            drop(locked(&path).unwrap());
            fs::write(path.join("data"), "x").unwrap();
            path
        };
        let abandoned = folder(&format!("{PREFIX}node-7-12-{old}"));
        let in_use = folder(&format!("{PREFIX}node-7-13-{old}"));
        let _lock = locked(&in_use).unwrap();
        let unlocked = root.path().join(format!("{PREFIX}a-1-{old}"));
        fs::create_dir(&unlocked).unwrap();
        let file = root.path().join(format!("{PREFIX}a-2-{old}"));
        fs::write(&file, "").unwrap();
        let others = [
            format!("{PREFIX}node-7-12-{young}"),
            format!("{PREFIX}7-{old}"),
            format!("{PREFIX}node-x-{old}"),
            format!("{PREFIX}node-7-12-{old}.kept"),
            format!("a-{PREFIX}node-7-12-{old}"),
        ];
        let others = others.map(|name| folder(&name));
        let tier = place(&root.path().to_string_lossy(), Duration::MAX).unwrap();
        remove_abandoned(&*tier, root.path());
        assert!(!abandoned.exists() && !unlocked.exists());
        assert!(in_use.join("data").exists() && file.exists());
        assert!(others.iter().all(|other| other.join("data").exists()), "{others:?}");
    }
}
