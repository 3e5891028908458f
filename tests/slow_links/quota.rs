//! Quota of CPU time: a control group whose processes may use a quarter of one core, version 1 or
//! 2. It is removed when dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// CPU time of each period: enough for a pass of the probe of memory, so that the measured rates
/// are those of the machine and the loss is in the gap.
const QUOTA_US: u64 = 100_000;
const PERIOD_US: u64 = 400_000;

/// Interval between two readings of the throttled time.
const INTERVAL: Duration = Duration::from_millis(1);

/// Control group with a quota, whose throttled time is read all the time.
#[derive(Debug)]
pub(crate) struct Quota {
    group: PathBuf,
    readings: Arc<Mutex<Vec<Reading>>>,
    is_over: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

/// Time for which the group was throttled until a moment.
#[derive(Debug, Clone, Copy)]
struct Reading {
    unix_ms: f64,
    throttled_ms: f64,
}

impl Quota {
    pub(crate) fn new() -> Self {
        let mount = [Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup")];
        let mount = mount.into_iter().find(|mount| mount.is_dir()).unwrap();
        let name = tempfile::Builder::new().prefix("yardstick").tempdir_in(mount).unwrap();
        let group = name.keep();
        if group.join("cpu.max").exists() {
            fs::write(group.join("cpu.max"), format!("{QUOTA_US} {PERIOD_US}")).unwrap();
        } else {
            fs::write(group.join("cpu.cfs_period_us"), PERIOD_US.to_string()).unwrap();
            fs::write(group.join("cpu.cfs_quota_us"), QUOTA_US.to_string()).unwrap();
        }
        let (readings, is_over) = (Arc::default(), Arc::default());
        let mut quota = Self { group, readings, is_over, reader: None };
        quota.read_all_the_time();
        quota
    }

    fn read_all_the_time(&mut self) {
        let stat = self.group.join("cpu.stat");
        let (readings, is_over) = (Arc::clone(&self.readings), Arc::clone(&self.is_over));
        self.reader = Some(std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                readings.lock().unwrap().push(Reading::of(&stat));
                std::thread::sleep(INTERVAL);
            }
        }));
    }

    /// Returns the command in this group.
    pub(crate) fn limit(&self, command: &Command) -> Command {
        let mut limited = Command::new("sh");
        limited.args(["-c", "echo $$ > \"$1\"; shift; exec \"$@\"", "sh"]);
        limited.arg(self.group.join("cgroup.procs")).arg(command.get_program());
        limited.args(command.get_args());
        limited
    }

    /// Returns the time for which the group was throttled between two moments in which it ran: the
    /// kernel adds a period's when it is over.
    pub(crate) fn throttled_ms(&self, from_unix_ms: f64, to_unix_ms: f64) -> f64 {
        let readings = self.readings.lock().unwrap();
        let at = |unix_ms| readings[readings.partition_point(|it| it.unix_ms < unix_ms)];
        at(to_unix_ms).throttled_ms - at(from_unix_ms).throttled_ms
    }
}

impl Reading {
    /// Version 1 counts nanoseconds, version 2 microseconds.
    fn of(stat: &Path) -> Self {
        let text = fs::read_to_string(stat).unwrap();
        let find = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        let throttled_ms = find("throttled_usec ").map(|us: f64| us / 1e3);
        let throttled_ms = throttled_ms.or_else(|| Some(find("throttled_time ")? / 1e6)).unwrap();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Self { unix_ms: 1e3 * since.as_secs_f64(), throttled_ms }
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.reader.take().map(JoinHandle::join);
        let _ = fs::remove_dir(&self.group); // only after its processes
    }
}
