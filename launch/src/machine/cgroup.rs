//! CPU time and memory that the control groups of this process allow, versions 1 and 2.
//!
//! Sources: the Linux kernel's `Documentation/admin-guide/cgroup-v2.rst` (`cpu.max`,
//! `memory.max`, `memory.current`, `memory.stat`), `scheduler/sched-bwc.rst` and
//! `admin-guide/cgroup-v1/memory.rst`.

use std::fs;
use std::path::{Path, PathBuf};

/// Limits of this process together with everything else in its control groups.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CgroupLimits {
    /// CPU time per wall time, in cores.
    pub cpu_cores: Option<f64>,
    /// Bytes that can still be allocated under the tightest memory limit; reclaimable file cache
    /// counts as free.
    pub memory_free_bytes: Option<u64>,
}

impl CgroupLimits {
    /// Reads the limits of this process. Unreadable values count as no limit.
    pub fn of_this_process() -> Self {
        Self::read_below(Path::new("/"))
    }

    /// Reads the limits below a folder with the files of a host.
    pub(crate) fn read_below(root: &Path) -> Self {
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        Self::read(&groups, &root.join("sys/fs/cgroup"))
    }

    /// Reads the limits under `root`, for a process whose `/proc/self/cgroup` reads `groups`.
    ///
    /// Every ancestor of a group limits too. Inside a container the path may not exist below the
    /// mount, whose top is then the container's own group: it is one of the ancestors.
    fn read(groups: &str, root: &Path) -> Self {
        let mut limits = Self::default();
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            for mount in mounts(root, controllers) {
                for group in ancestors(&mount, path) {
                    limits.cpu_cores = least(limits.cpu_cores, cpu_cores(&group));
                    limits.memory_free_bytes =
                        least(limits.memory_free_bytes, memory_free_bytes(&group));
                }
            }
        }
        limits
    }
}

/// Possible mounts of a hierarchy: version 2 has no controller names in its line.
fn mounts(root: &Path, controllers: &str) -> Vec<PathBuf> {
    if controllers.is_empty() {
        return vec![root.to_owned(), root.join("unified")];
    }
    let wanted = |name: &&str| ["cpu", "memory"].contains(name);
    let mut mounts: Vec<_> = controllers.split(',').filter(wanted).map(|c| root.join(c)).collect();
    if !mounts.is_empty() && controllers.contains(',') {
        mounts.push(root.join(controllers));
    }
    mounts
}

/// Lists the group's folder and all folders above it, up to the mount.
fn ancestors(mount: &Path, path: &str) -> Vec<PathBuf> {
    let path = Path::new(path.trim_start_matches('/'));
    path.ancestors().map(|part| mount.join(part)).collect()
}

fn least<T: PartialOrd>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b < a { b } else { a }),
        (a, b) => a.or(b),
    }
}

fn cpu_cores(group: &Path) -> Option<f64> {
    let (quota, period) = match fs::read_to_string(group.join("cpu.max")) {
        Ok(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?) // "max" is no number
        }
        Err(_) => (number(group, "cpu.cfs_quota_us")?, number(group, "cpu.cfs_period_us")?),
    };
    (quota > 0.0 && period > 0.0).then(|| quota / period) // version 1 writes -1 for no limit
}

fn memory_free_bytes(group: &Path) -> Option<u64> {
    let (limit, used, cache) = match number(group, "memory.max") {
        Some(limit) => (limit, number(group, "memory.current")?, "inactive_file "),
        None => {
            let limit = number(group, "memory.limit_in_bytes")?;
            (limit, number(group, "memory.usage_in_bytes")?, "total_inactive_file ")
        }
    };
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cache = stat.lines().find_map(|line| line.strip_prefix(cache)?.parse().ok());
    Some((limit as u64).saturating_sub((used as u64).saturating_sub(cache.unwrap_or(0))))
}

fn number(group: &Path, file: &str) -> Option<f64> {
    fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn version_2_takes_the_tightest_ancestor() {
        let root = tree(&[
            ("pods/cpu.max", "350000 100000\n"),
            ("pods/job/cpu.max", "max 100000\n"),
            ("pods/memory.max", "max\n"),
            ("pods/job/memory.max", "1000000\n"),
            ("pods/job/memory.current", "600000\n"),
            ("pods/job/memory.stat", "anon 100000\ninactive_file 500000\n"),
        ]);
        let limits = CgroupLimits::read("0::/pods/job\n", root.path());
        assert_eq!(limits.cpu_cores, Some(3.5));
        assert_eq!(limits.memory_free_bytes, Some(900_000));
    }

    #[test]
    fn version_1_with_joined_controllers_and_a_container_s_own_top() {
        let root = tree(&[
            ("cpu,cpuacct/cpu.cfs_quota_us", "200000\n"),
            ("cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("memory/memory.limit_in_bytes", "4096\n"),
            ("memory/memory.usage_in_bytes", "96\n"),
        ]);
        let groups = "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n3:freezer:/\n";
        let limits = CgroupLimits::read(groups, root.path());
        assert_eq!(limits, CgroupLimits { cpu_cores: Some(2.0), memory_free_bytes: Some(4000) });
    }

    #[test]
    fn no_limit_is_no_limit() {
        let root = tree(&[
            ("cpu.max", "max 100000\n"),
            ("cpu/cpu.cfs_quota_us", "-1\n"),
            ("cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(CgroupLimits::read("0::/\n1:cpu:/\n", root.path()), CgroupLimits::default());
        assert_eq!(CgroupLimits::read("", root.path()), CgroupLimits::default());
    }
}
