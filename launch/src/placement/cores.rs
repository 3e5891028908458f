//! Logical processors that a process may run on, and binding of threads to them.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::Error;

/// Largest number of logical processors that a binding can name.
pub const CORES_MAX: usize = CpuSet::MAX_CPU;

/// Folder in which Linux describes processors.
pub(super) const SYSFS: &str = "/sys/devices/system/cpu";

/// Lists logical processors that the current thread may run on, grouped by physical core.
///
/// If the system cannot list them, the result has the recommended number of processors, but perhaps
/// not the ones that may be used.
pub fn allowed_cores() -> Vec<usize> {
    known_cores().unwrap_or_else(|| {
        (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
    })
}

/// Lists the same processors, or `None` if the system cannot (more than [`CORES_MAX`] of them).
pub(super) fn known_cores() -> Option<Vec<usize>> {
    let cores = members(&sched_getaffinity(None).ok()?);
    Some(by_physical_core(cores, Path::new(SYSFS)))
}

/// Lists logical processors that the parent process may run on; `None` if the system cannot.
pub(super) fn cores_of_parent() -> Option<Vec<usize>> {
    let parent = rustix::process::getppid()?;
    Some(members(&sched_getaffinity(Some(parent)).ok()?))
}

fn members(set: &CpuSet) -> Vec<usize> {
    (0..CORES_MAX).filter(|&core| set.is_set(core)).collect()
}

/// Sorts by physical core: siblings are often numbered half the machine apart.
pub(super) fn by_physical_core(mut cores: Vec<usize>, sysfs: &Path) -> Vec<usize> {
    let physical: HashMap<_, _> =
        cores.iter().map(|&core| (core, physical_core(core, sysfs))).collect();
    cores.sort_by_key(|core| (physical[core], *core));
    cores
}

/// A physical core, which has one or more logical processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PhysicalCore {
    package: i64,
    number: i64,
}

/// Finds the physical core of a logical processor, if the system reports it.
pub(super) fn physical_core(core: usize, sysfs: &Path) -> Option<PhysicalCore> {
    let read = |file| {
        let path = sysfs.join(format!("cpu{core}/topology/{file}"));
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    Some(PhysicalCore { package: read("physical_package_id")?, number: read("core_id")? })
}

/// Binds the current thread, and threads that it starts, to these cores.
pub(super) fn bind_current_thread(cores: &[usize]) -> Result<(), Error> {
    let mut set = CpuSet::new();
    for &core in cores.iter().filter(|&&core| core < CORES_MAX) {
        set.set(core);
    }
    sched_setaffinity(None, &set).map_err(|source| Error::System {
        action: format!("bind a thread to cores {cores:?}"),
        source: source.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_become_adjacent() {
        let root = tempfile::tempdir().unwrap();
        // Topology: two packages of two cores of two threads, numbered as Linux does on x86.
        for cpu in 0..8 {
            let folder = root.path().join(format!("cpu{cpu}/topology"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("physical_package_id"), format!("{}\n", cpu % 2)).unwrap();
            fs::write(folder.join("core_id"), format!("{}\n", cpu % 4 / 2)).unwrap();
        }
        let cores = by_physical_core((0..8).collect(), root.path());
        assert_eq!(cores, [0, 4, 2, 6, 1, 5, 3, 7]);
        let unknown = by_physical_core(vec![3, 1, 2], Path::new("/nonexistent"));
        assert_eq!(unknown, [1, 2, 3]);
    }

    #[test]
    fn binding_takes_effect_and_wrong_cores_are_an_error() {
        let allowed = allowed_cores();
        assert!(!allowed.is_empty());
        let thread = std::thread::spawn(move || {
            let last = allowed[allowed.len() - 1];
            bind_current_thread(&[last]).unwrap();
            assert_eq!(allowed_cores(), [last]);
            assert!(bind_current_thread(&[]).is_err());
            let error = bind_current_thread(&[CORES_MAX - 1]).expect_err("no such core");
            assert!(error.to_string().contains(&(CORES_MAX - 1).to_string()), "{error}");
        });
        thread.join().unwrap();
    }
}
