//! The folder of an `mpirun` among temporary files.

use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::geteuid;

const PREFIX: &str = "yardstick-launch-";

/// File that is locked as long as the folder is in use. It names the machine: a shared file system
/// need not show the locks of other machines.
const LOCK: &str = "lock";

/// Prefix of files that ranks leave for people, such as logs of NCCL after a failure.
const LOGS: &str = "yardstick-";

/// A folder for a host file and the files of a session. Dropping it removes it, unless ranks, which
/// use it for temporary files, have left logs in it.
#[derive(Debug)]
pub(super) struct OwnFolder {
    path: PathBuf,
    _lock: File,
}

impl OwnFolder {
    pub(super) fn create() -> io::Result<Self> {
        Self::create_in(&std::env::temp_dir())
    }

    fn create_in(temporary: &Path) -> io::Result<Self> {
        let path = tempfile::Builder::new().prefix(PREFIX).tempdir_in(temporary)?.keep();
        // A search for abandoned folders must find the lock held, or no lock.
        let nameless = path.join("lock.new");
        let mut lock = File::create(&nameless)?;
        lock.write_all(this_machine().as_bytes())?;
        let _ = lock.try_lock(); // where there are no locks, the folder is not removed by others
        // `mpirun` inherits the lock: it may outlive this process.
        fcntl_setfd(&lock, FdFlags::empty())?;
        fs::rename(&nameless, path.join(LOCK))?;
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes over a folder of this user whose launcher was killed and whose `mpirun` has ended.
    fn abandoned(entry: &DirEntry) -> Option<Self> {
        let is_named = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let found = entry.metadata().ok().filter(|_| is_named)?;
        if !found.is_dir() || found.uid() != geteuid().as_raw() {
            return None;
        }
        let path = entry.path();
        let lock_path = path.join(LOCK);
        if fs::read_to_string(&lock_path).ok()? != this_machine() {
            return None;
        }
        // NFS gives an exclusive lock only on a file that is open for writing.
        let lock = OpenOptions::new().write(true).open(&lock_path).ok()?;
        lock.try_lock().ok()?;
        Some(Self { path, _lock: lock })
    }
}

/// Host name and boot of this machine.
fn this_machine() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{} {boot}", record::machine::host_name())
}

/// Removes folders that killed launchers of this user on this machine have left among temporary
/// files, and returns them. Folders with logs stay.
pub(super) fn remove_abandoned(temporary: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(temporary).into_iter().flatten().flatten();
    let abandoned = entries.filter_map(|entry| OwnFolder::abandoned(&entry));
    let removed = abandoned.map(|folder| folder.path.clone()); // each is dropped
    removed.filter(|path| !path.exists()).collect()
}

impl Drop for OwnFolder {
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let path = entry.path();
            if !entry.file_name().to_string_lossy().starts_with(LOGS) {
                let _ =
                    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            }
        }
        let _ = fs::remove_dir(&self.path); // which it only is when empty
    }
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn only_logs_stay() {
        for logs in [0, 1] {
            let folder = OwnFolder::create().unwrap();
            let path = folder.path().to_owned();
            fs::create_dir_all(path.join("ompi.host.0/pid.7")).unwrap();
            fs::write(path.join("hostfile"), "a\n").unwrap();
            (0..logs).for_each(|_| fs::write(path.join("yardstick-nccl-a-7.log"), "").unwrap());
            drop(folder);
            let left = fs::read_dir(&path).map_or(0, Iterator::count);
            assert_eq!((left, path.exists()), (logs, logs > 0));
            let _ = fs::remove_dir_all(path);
        }
    }

    #[test]
    fn what_a_killed_launcher_has_left_is_removed_and_nothing_else() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = |name: &str, lock: Option<&str>| {
            let path = temporary.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("hostfile"), "a\n").unwrap();
            lock.map(|lock| {
                fs::write(path.join(lock), this_machine()).unwrap();
                File::open(path.join(lock)).unwrap()
            })
        };
        folder("yardstick-launch-dead", Some(LOCK));
        folder("yardstick-launch-logs", Some(LOCK));
        let log = temporary.path().join("yardstick-launch-logs/yardstick-nccl.log");
        fs::write(&log, "").unwrap();
        folder("yardstick-launch-elsewhere", Some(LOCK));
        let elsewhere = temporary.path().join("yardstick-launch-elsewhere").join(LOCK);
        fs::write(elsewhere, "node-b 1234\n").unwrap();
        folder("yardstick-launch-new", Some("lock.new"));
        folder("yardstick-launch-old", None);
        folder("yardstick-bench-dead", Some(LOCK));
        let alive = folder("yardstick-launch-alive", Some(LOCK)).unwrap();
        alive.try_lock().unwrap();
        fs::write(temporary.path().join("yardstick-launch-file"), "").unwrap();
        let dead = temporary.path().join("yardstick-launch-dead");
        std::os::unix::fs::symlink(&dead, temporary.path().join("yardstick-launch-link")).unwrap();
        assert_eq!(remove_abandoned(temporary.path()), [dead]);
        assert_eq!(remove_abandoned(temporary.path()), [""; 0].map(PathBuf::from));
        let left = fs::read_dir(temporary.path()).unwrap().count();
        assert_eq!(left, 8);
        assert!(log.exists());
    }

    #[test]
    fn a_folder_is_in_use_as_long_as_a_child_has_its_lock() {
        let temporary = tempfile::tempdir().unwrap();
        let mut folder = ManuallyDrop::new(OwnFolder::create_in(temporary.path()).unwrap());
        let lock = File::open(folder.path().join(LOCK)).unwrap();
        let mut mpirun = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert!(lock.try_lock().is_err());
        folder._lock = File::open("/dev/null").unwrap(); // as the end of this process closes it
        assert!(lock.try_lock().is_err(), "`mpirun` runs");
        drop(mpirun.stdin.take());
        mpirun.wait().unwrap();
        // Children of other tests may hold the lock for a moment.
        let deadline = Instant::now() + Duration::from_secs(60);
        while lock.try_lock().is_err() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
