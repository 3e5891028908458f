//! Number of compute threads of a rank, and the cores that they run on.
//!
//! Ranks that `mpirun` has bound to cores of their own keep them. Ranks that share the same cores
//! divide them, so that threads of different ranks do not compete for one core. Ranks whose cores
//! overlap in part run as many threads as their parts add up to, and pin none. A rank with a GPU
//! uses only those of its cores that are on the GPU's NUMA node, and is bound to them even if it
//! shares them. If none of its cores is on that node, it keeps all of them, like other ranks.

use std::path::Path;

use super::core_share::CoreShare;
use super::cores::{SYSFS, allowed_cores, bind_current_thread, by_physical_core, known_cores};
use super::location::RankLocation;
use crate::error::Error;
use crate::machine::CgroupLimits;

/// Compute threads of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadPlan {
    /// Number of compute threads, at least 1.
    pub threads: usize,
    /// Logical processors that they may run on.
    pub cores: Vec<usize>,
    /// True if no other rank uses `cores`, so that the threads should be pinned to them.
    pub exclusive: bool,
    /// Number of the GPU's NUMA node, if `cores` belong to it.
    pub numa_node: Option<usize>,
}

impl ThreadPlan {
    /// Plans the threads of the first of `local_world` ranks that share the cores of this process:
    /// no other of these ranks gets more threads, unless GPUs are near different cores. `threads`
    /// overrides the number.
    ///
    /// # Panics
    /// When `threads` or `local_world` is 0.
    pub fn of_first_rank(local_world: usize, threads: Option<usize>) -> Self {
        let share = CoreShare { index: 0, count: local_world, overlapping_threads: None };
        Resources::of_this_process(allowed_cores(), share, local_world).plan(threads)
    }

    /// Plans the threads of this process among all ranks; `locations` has one entry per rank.
    pub(crate) fn of_rank(rank: usize, locations: &[RankLocation], threads: Option<usize>) -> Self {
        let own = &locations[rank];
        let local_world = locations.iter().filter(|other| other.node() == own.node()).count();
        let share = CoreShare::new(rank, locations);
        let cores = by_physical_core(own.cores.clone(), Path::new(SYSFS));
        Resources::of_this_process(cores, share, local_world).plan(threads)
    }

    /// Returns whether threads may run on `cores` only.
    pub fn is_bound(&self) -> bool {
        self.exclusive || self.numa_node.is_some()
    }

    /// Binds the current thread, and threads that it starts, to the cores of the plan, if no other
    /// rank uses them or they are near the GPU.
    ///
    /// # Errors
    /// [`Error::System`] when the plan names a core that this process may not use.
    pub fn bind(&self) -> Result<(), Error> {
        if self.is_bound() { bind_current_thread(&self.cores) } else { Ok(()) }
    }
}

/// Input of a [`ThreadPlan`].
#[derive(Debug, Clone)]
struct Resources {
    /// Logical processors for this rank, those of one physical core adjacent.
    cores: Vec<usize>,
    /// Number of logical processors that this process may run on.
    allowed: usize,
    /// True if the system reports the cores; otherwise they are a guess, good for a number only.
    cores_known: bool,
    /// Share of this rank among those of the machine that may run on exactly the same cores.
    share: CoreShare,
    /// Number of ranks on this node, which share the quota.
    local_world: usize,
    /// CPU time per wall time that the control group allows, in cores.
    quota_cores: Option<f64>,
}

impl Resources {
    fn of_this_process(cores: Vec<usize>, share: CoreShare, local_world: usize) -> Self {
        Self {
            cores,
            allowed: allowed_cores().len(),
            cores_known: known_cores().is_some(),
            share,
            local_world,
            quota_cores: CgroupLimits::of_this_process().cpu_cores,
        }
    }

    /// Divides the cores among the ranks that share them; `requested` overrides the number of
    /// threads.
    ///
    /// Cores that overlap in part with another rank's are not divided, and nothing is pinned to
    /// them. Nothing is pinned under a CPU quota below the number of cores: other containers on the
    /// machine see the same cores, and would choose the same ones. Nor is anything pinned if the
    /// allowed cores are not known.
    ///
    /// # Panics
    /// If the requested number is 0, or there is no core at all.
    fn plan(&self, requested: Option<usize>) -> ThreadPlan {
        assert!(!self.cores.is_empty(), "a process runs on at least one core");
        assert!(requested != Some(0), "at least one compute thread");
        let exclusive = self.cores_known && self.is_within_quota() && self.is_divisible();
        let cores = if exclusive { own_slice(&self.cores, self.share) } else { self.cores.clone() };
        let fair = match self.share.overlapping_threads {
            _ if exclusive => cores.len(),
            Some(threads) => threads,
            None => self.cores.len() / self.share.count,
        };
        let threads = requested.unwrap_or_else(|| fair.min(self.quota_threads()).max(1));
        ThreadPlan { threads, cores, exclusive, numa_node: None }
    }

    fn is_within_quota(&self) -> bool {
        self.quota_cores.is_none_or(|quota| quota >= self.allowed as f64)
    }

    fn is_divisible(&self) -> bool {
        self.share.overlapping_threads.is_none() && self.share.count <= self.cores.len()
    }

    /// Number of threads that this rank's share of the CPU quota can run.
    fn quota_threads(&self) -> usize {
        self.quota_cores.map_or(usize::MAX, |quota| quota as usize / self.local_world.max(1))
    }
}

/// Returns one rank's slice of the cores: contiguous, and one core longer for the first ranks if
/// the division leaves a remainder.
fn own_slice(cores: &[usize], share: CoreShare) -> Vec<usize> {
    let each = cores.len() / share.count;
    let remainder = cores.len() % share.count;
    let start = share.index * each + share.index.min(remainder);
    let len = each + usize::from(share.index < remainder);
    cores[start..start + len].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(cores: usize, index: usize, count: usize) -> Resources {
        Resources {
            cores: (0..cores).collect(),
            allowed: cores,
            cores_known: true,
            share: CoreShare { index, count, overlapping_threads: None },
            local_world: count,
            quota_cores: None,
        }
    }

    #[test]
    fn shared_cores_are_divided_without_gap_or_overlap() {
        for (cores, count) in [(8, 1), (8, 2), (8, 3), (7, 7)] {
            let plans: Vec<_> = (0..count).map(|i| resources(cores, i, count).plan(None)).collect();
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
        let plan = resources(2, 3, 4).plan(None);
        assert_eq!((plan.threads, plan.cores, plan.exclusive), (1, vec![0, 1], false));
    }

    #[test]
    fn a_quota_limits_threads_and_forbids_pinning() {
        let quota = Resources { quota_cores: Some(4.5), ..resources(64, 1, 2) };
        let plan = quota.plan(None);
        assert_eq!((plan.threads, plan.cores.len(), plan.exclusive), (2, 64, false));
        let tiny = Resources { quota_cores: Some(0.5), ..resources(64, 0, 1) };
        assert_eq!(tiny.plan(None).threads, 1);
        let ample = Resources { quota_cores: Some(64.0), ..resources(64, 0, 2) };
        assert_eq!(ample.plan(None).threads, 32);
        assert!(ample.plan(None).exclusive);
    }

    #[test]
    fn cores_that_overlap_with_another_rank_s_are_never_pinned() {
        for (part, threads) in [(3, 3), (0, 1)] {
            let share = CoreShare { index: 0, count: 1, overlapping_threads: Some(part) };
            let plan = Resources { share, ..resources(4, 0, 1) }.plan(None);
            assert_eq!((plan.threads, plan.cores.len(), plan.exclusive), (threads, 4, false));
        }
    }

    #[test]
    fn guessed_cores_are_never_pinned() {
        let guess = Resources { cores_known: false, ..resources(8, 1, 2) };
        let plan = guess.plan(None);
        assert_eq!((plan.threads, plan.cores.len(), plan.exclusive), (4, 8, false));
    }

    #[test]
    fn a_number_of_threads_can_be_requested() {
        let plan = resources(8, 0, 2).plan(Some(1));
        assert_eq!((plan.threads, plan.cores), (1, vec![0, 1, 2, 3]));
        assert_eq!(resources(8, 0, 2).plan(Some(16)).threads, 16);
    }

    #[test]
    fn only_a_plan_of_cores_of_its_own_binds() {
        let allowed = allowed_cores();
        let cores = vec![allowed[0]];
        let thread = std::thread::spawn(move || {
            let shared = ThreadPlan { threads: 1, cores, exclusive: false, numa_node: None };
            shared.bind().unwrap();
            assert_eq!(allowed_cores(), allowed, "threads are not bound to shared cores");
            let own = ThreadPlan { exclusive: true, ..shared };
            own.bind().unwrap();
            assert_eq!(allowed_cores(), own.cores);
        });
        thread.join().unwrap();
    }

    #[test]
    fn shared_cores_near_the_gpu_bind() {
        let cores = vec![allowed_cores()[0]];
        let plan = ThreadPlan { threads: 1, cores, exclusive: false, numa_node: Some(0) };
        let thread = std::thread::spawn(move || {
            plan.bind().unwrap();
            assert_eq!(allowed_cores(), plan.cores);
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_quota_counts_against_all_cores_and_not_those_of_one_numa_node() {
        let near = Resources { allowed: 128, quota_cores: Some(64.0), ..resources(64, 0, 4) };
        let plan = near.plan(None);
        assert_eq!((plan.threads, plan.cores.len(), plan.exclusive), (16, 64, false));
    }
}
