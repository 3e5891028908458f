//! Runs that recorded no end and have no process any more.

use std::path::Path;
use std::time::Duration;

use crate::files::regular_file;
use crate::machine::host_name;
use crate::record::Record;
use crate::sections::Status;
use crate::steps::steps_path;

/// After so long without a step, a run of another host is not alive.
const QUIET: Duration = Duration::from_secs(600);

impl Record {
    /// Returns whether a run in `folder` that has recorded no end has no process any more: nobody
    /// holds the lock of the folder. On rank 0's host its process has to be gone, too: the folder
    /// may be a copy. On another one, whose locks may not be seen here, nothing may have been
    /// written for a while. A folder without a lock does not say.
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

/// Whether nothing was written for a while.
fn is_quiet(folder: &Path) -> bool {
    let written = std::fs::metadata(steps_path(folder, 0))
        .or_else(|_| std::fs::metadata(Record::path(folder)))
        .and_then(|file| file.modified());
    written.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > QUIET))
}

/// Whether the process with the number that rank 0 had is one of ours that has not ended. Another
/// one may have got the number, and one that ended stays until its parent asks how.
fn has_process(record: &Record) -> bool {
    let Some(rank) = record.ranks.first() else { return false };
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", rank.pid)).unwrap_or_default();
    // Number, name in parentheses, state.
    let Some((name, rest)) = stat.rsplit_once(") ") else { return false };
    name.contains("(yardstick") && !rest.starts_with(['Z', 'X'])
}
