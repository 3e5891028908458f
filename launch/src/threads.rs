//! How many compute threads a rank runs, and on which cores.
//!
//! Ranks that `mpirun` has bound to cores of their own keep them. Ranks that share the same cores
//! divide them among each other, so that threads of different ranks do not fight for one core.
//! Ranks whose cores overlap in part run as many threads as fill their parts, and pin none.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::cgroup::Limits;
use crate::topology::Share;

/// Largest number of logical processors that a binding can name.
pub const CORES_MAX: usize = CpuSet::MAX_CPU;

/// Compute threads of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadPlan {
    /// Number of compute threads, at least 1.
    pub threads: usize,
    /// Logical processors that they may run on.
    pub cores: Vec<usize>,
    /// Whether `cores` is this rank's alone, so that its threads should be pinned to it.
    pub exclusive: bool,
}

/// What decides a [`ThreadPlan`].
#[derive(Debug, Clone)]
pub struct Resources {
    /// Logical processors that this process may run on, those of one physical core adjacent.
    pub cores: Vec<usize>,
    /// Whether the system says so; otherwise the cores are a guess, good for a number only.
    pub cores_known: bool,
    /// Which ranks of this machine may run on the very same ones.
    pub share: Share,
    /// Number of ranks on this node: they share the quota.
    pub local_world: usize,
    /// CPU time per wall time that the control group allows, in cores.
    pub quota_cores: Option<f64>,
}

impl Resources {
    /// Of a rank of this process's node that may run on the cores that the current thread may.
    pub fn of_this_process(share: Share, local_world: usize) -> Self {
        Self {
            cores: allowed_cores(),
            cores_known: known_cores().is_some(),
            share,
            local_world,
            quota_cores: Limits::of_this_process().cpu_cores,
        }
    }
}

impl ThreadPlan {
    /// Of the first of `local` ranks that share what this process may use: none gets more threads.
    ///
    /// # Panics
    /// As [`ThreadPlan::new`]; and when `local` is 0.
    pub fn of_first(local: usize, threads: Option<usize>) -> Self {
        let share = Share { index: 0, count: local, overlapping: None };
        Self::new(&Resources::of_this_process(share, local), threads)
    }

    /// Divides the cores among the ranks that share them; `threads` overrides the number.
    ///
    /// Cores that are also some other rank's are not divided, and nothing is pinned to them.
    /// Under a CPU quota below the number of cores nothing is pinned: other containers on the
    /// machine see the same cores, and would choose the same ones. Nor is anything when it is not
    /// known which cores the process may use.
    ///
    /// # Panics
    /// When the number of threads asked for is 0, or there is no core at all.
    pub fn new(resources: &Resources, threads: Option<usize>) -> Self {
        let Resources { cores, cores_known, share, local_world, quota_cores } = resources;
        assert!(!cores.is_empty(), "a process runs on at least one core");
        assert!(threads != Some(0), "at least one compute thread");
        let within_quota = quota_cores.is_none_or(|quota| quota >= cores.len() as f64);
        let is_divided = share.overlapping.is_none() && share.count <= cores.len();
        let exclusive = *cores_known && within_quota && is_divided;
        let mine = if exclusive { slice(cores, *share) } else { cores.clone() };
        let quota = quota_cores.map_or(usize::MAX, |quota| quota as usize / (*local_world).max(1));
        let fair = share.overlapping.unwrap_or(cores.len() / share.count);
        let most = if exclusive { mine.len() } else { fair };
        let threads = threads.unwrap_or_else(|| most.min(quota).max(1));
        Self { threads, cores: mine, exclusive }
    }

    /// Binds the current thread, and threads that it starts, to the cores of the plan, if they are
    /// this rank's alone.
    ///
    /// # Errors
    /// [`Error::System`] when the plan names a core that this process may not use.
    pub fn bind(&self) -> Result<(), Error> {
        if self.exclusive { pin_current_thread(&self.cores) } else { Ok(()) }
    }
}

/// The part of one of several ranks: contiguous, the first ranks take what is left over.
fn slice(cores: &[usize], share: Share) -> Vec<usize> {
    let (each, more) = (cores.len() / share.count, cores.len() % share.count);
    let start = share.index * each + share.index.min(more);
    let len = each + usize::from(share.index < more);
    cores[start..start + len].to_vec()
}

/// Logical processors that the current thread may run on, those of one physical core adjacent.
///
/// Where the system cannot say, as many as it recommends: right in number, but perhaps not the
/// ones that may be used.
pub fn allowed_cores() -> Vec<usize> {
    known_cores().unwrap_or_else(|| {
        (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
    })
}

/// The same, or `None` where the system cannot say (more than [`CORES_MAX`] of them).
pub(crate) fn known_cores() -> Option<Vec<usize>> {
    let cores = members(&sched_getaffinity(None).ok()?);
    Some(by_physical_core(cores, Path::new("/sys/devices/system/cpu")))
}

fn members(set: &CpuSet) -> Vec<usize> {
    (0..CORES_MAX).filter(|&core| set.is_set(core)).collect()
}

/// Logical processors that the process which started this one may run on: those that a launcher had
/// to give. `None` where the system does not say.
pub(crate) fn cores_of_parent() -> Option<Vec<usize>> {
    let parent = rustix::process::getppid()?;
    Some(members(&sched_getaffinity(Some(parent)).ok()?))
}

/// Sorts by package and physical core: siblings are often numbered half the machine apart.
pub(crate) fn by_physical_core(mut cores: Vec<usize>, root: &Path) -> Vec<usize> {
    let place = |core| physical_core(core, root).map(|number| number.unwrap_or(-1));
    let places: HashMap<_, _> = cores.iter().map(|&core| (core, place(core))).collect();
    cores.sort_by_key(|core| (places[core], *core));
    cores
}

/// Package and number of a logical processor's physical core, where the system says them.
pub(crate) fn physical_core(core: usize, root: &Path) -> [Option<i64>; 2] {
    ["physical_package_id", "core_id"].map(|file| {
        let path = root.join(format!("cpu{core}/topology/{file}"));
        fs::read_to_string(path).ok()?.trim().parse().ok()
    })
}

/// Lets the current thread, and threads that it starts, run on these cores only.
fn pin_current_thread(cores: &[usize]) -> Result<(), Error> {
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

    fn resources(cores: usize, index: usize, count: usize) -> Resources {
        Resources {
            cores: (0..cores).collect(),
            cores_known: true,
            share: Share { index, count, overlapping: None },
            local_world: count,
            quota_cores: None,
        }
    }

    #[test]
    fn shared_cores_are_divided_without_gap_or_overlap() {
        for (cores, count) in [(8, 1), (8, 2), (8, 3), (7, 7)] {
            let plans: Vec<_> =
                (0..count).map(|i| ThreadPlan::new(&resources(cores, i, count), None)).collect();
            let all: Vec<_> = plans.iter().flat_map(|plan| plan.cores.clone()).collect();
            assert_eq!(all, (0..cores).collect::<Vec<_>>(), "{count} ranks on {cores} cores");
            for plan in plans {
                assert!(plan.exclusive);
                assert_eq!(plan.threads, plan.cores.len());
            }
        }
    }

    #[test]
    fn more_ranks_than_cores_run_one_thread_each_unpinned() {
        let plan = ThreadPlan::new(&resources(2, 3, 4), None);
        assert_eq!(plan, ThreadPlan { threads: 1, cores: vec![0, 1], exclusive: false });
    }

    #[test]
    fn a_quota_limits_threads_and_forbids_pinning() {
        let quota = Resources { quota_cores: Some(4.5), ..resources(64, 1, 2) };
        let plan = ThreadPlan::new(&quota, None);
        assert_eq!((plan.threads, plan.cores.len(), plan.exclusive), (2, 64, false));
        let tiny = Resources { quota_cores: Some(0.5), ..resources(64, 0, 1) };
        assert_eq!(ThreadPlan::new(&tiny, None).threads, 1);
        let ample = Resources { quota_cores: Some(64.0), ..resources(64, 0, 2) };
        assert_eq!(ThreadPlan::new(&ample, None).threads, 32);
        assert!(ThreadPlan::new(&ample, None).exclusive);
    }

    #[test]
    fn cores_that_are_another_rank_s_as_well_are_never_pinned() {
        for (part, threads) in [(3, 3), (0, 1)] {
            let share = Share { index: 0, count: 1, overlapping: Some(part) };
            let plan = ThreadPlan::new(&Resources { share, ..resources(4, 0, 1) }, None);
            assert_eq!((plan.threads, plan.cores.len(), plan.exclusive), (threads, 4, false));
        }
    }

    #[test]
    fn guessed_cores_are_never_pinned() {
        let guess = Resources { cores_known: false, ..resources(8, 1, 2) };
        let plan = ThreadPlan::new(&guess, None);
        assert_eq!((plan.threads, plan.cores.len(), plan.exclusive), (4, 8, false));
    }

    #[test]
    fn a_number_of_threads_can_be_asked_for() {
        let plan = ThreadPlan::new(&resources(8, 0, 2), Some(1));
        assert_eq!((plan.threads, plan.cores), (1, vec![0, 1, 2, 3]));
        assert_eq!(ThreadPlan::new(&resources(8, 0, 2), Some(16)).threads, 16);
    }

    #[test]
    fn siblings_become_neighbours() {
        let root = tempfile::tempdir().unwrap();
        // Two packages of two cores of two threads, numbered as Linux does on x86.
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
    fn only_a_plan_of_cores_of_its_own_binds() {
        let allowed = allowed_cores();
        let cores = vec![allowed[0]];
        let thread = std::thread::spawn(move || {
            let shared = ThreadPlan { threads: 1, cores, exclusive: false };
            shared.bind().unwrap();
            assert_eq!(allowed_cores(), allowed, "shared cores are not for binding");
            let own = ThreadPlan { exclusive: true, ..shared };
            own.bind().unwrap();
            assert_eq!(allowed_cores(), own.cores);
        });
        thread.join().unwrap();
    }

    #[test]
    fn pinning_takes_effect_and_wrong_cores_are_an_error() {
        let allowed = allowed_cores();
        assert!(!allowed.is_empty());
        let thread = std::thread::spawn(move || {
            let last = allowed[allowed.len() - 1];
            pin_current_thread(&[last]).unwrap();
            assert_eq!(allowed_cores(), [last]);
            assert!(pin_current_thread(&[]).is_err());
            let error = pin_current_thread(&[CORES_MAX - 1]).expect_err("no such core");
            assert!(error.to_string().contains(&(CORES_MAX - 1).to_string()), "{error}");
        });
        thread.join().unwrap();
    }
}
