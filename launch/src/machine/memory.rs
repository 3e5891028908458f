//! Memory that a run may still allocate.

use std::fs;

use super::cgroup::CgroupLimits;

/// Returns the bytes that this process can still allocate without swapping or being killed: the
/// smaller of the kernel's `MemAvailable` and what its control groups leave; `None` if neither is
/// known.
///
/// Ranks on one node share it.
pub fn available_memory_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = meminfo_bytes(&meminfo, "MemAvailable");
    match (machine, CgroupLimits::of_this_process().memory_free_bytes) {
        (Some(machine), Some(group)) => Some(machine.min(group)),
        (machine, group) => machine.or(group),
    }
}

/// Returns a value of `/proc/meminfo` (proc(5): in KiB) in bytes.
pub(crate) fn meminfo_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_by_whole_keys() {
        let text = "MemTotal:       16384 kB\nMemAvailable:    2048 kB\nMemFree:  1 kB\n";
        assert_eq!(meminfo_bytes(text, "MemAvailable"), Some(2048 * 1024));
        assert_eq!(meminfo_bytes(text, "Mem"), None);
        assert_eq!(meminfo_bytes("MemAvailable: many kB\n", "MemAvailable"), None);
    }

    #[test]
    fn this_machine_has_some_memory_left() {
        let bytes = available_memory_bytes().expect("Linux says how much memory there is");
        assert!(bytes > 1 << 20, "only {bytes} bytes");
    }
}
