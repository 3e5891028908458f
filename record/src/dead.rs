//! Runs that recorded no end and whose process is gone.

use std::path::Path;
use std::time::Duration;

use crate::files::regular_file;
use crate::machine::host_name;
use crate::record::Record;
use crate::sections::Status;
use crate::steps::steps_path;

/// Time without a step after which a run on another host counts as dead.
const QUIET: Duration = Duration::from_secs(600);

impl Record {
    /// Returns whether the process of a run in `folder` that recorded no end is gone: nobody holds
    /// the folder's lock. On rank 0's host its process must be gone too, as the folder may be a
    /// copy. On another host, where locks may not be visible, nothing may have been written for a
    /// while. A run without a lock file counts as alive.
    pub fn is_dead(&self, folder: &Path) -> bool {
        if self.status != Status::Running {
            return false;
        }
        let lock = regular_file::open_to_read(&folder.join("lock"));
        let is_free = lock.is_ok_and(|file| file.try_lock_shared().is_ok());
        let is_here = self.environment.machine.host == host_name();
        is_free && if is_here { !has_process(self) } else { is_quiet(folder) }
    }
}

/// Returns whether nothing was written for a while.
fn is_quiet(folder: &Path) -> bool {
    let written = std::fs::metadata(steps_path(folder, 0))
        .or_else(|_| std::fs::metadata(Record::path(folder)))
        .and_then(|file| file.modified());
    written.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > QUIET))
}

/// Returns whether the pid of rank 0 is a process of this program that has not ended. Another
/// process may have reused the pid, and an ended one stays a zombie until its parent reaps it.
fn has_process(record: &Record) -> bool {
    let Some(rank) = record.ranks.first() else { return false };
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", rank.pid)).unwrap_or_default();
    // Number, name in parentheses, state.
    let Some((name, rest)) = stat.rsplit_once(") ") else { return false };
    name.contains("(yardstick") && !rest.starts_with(['Z', 'X'])
}
