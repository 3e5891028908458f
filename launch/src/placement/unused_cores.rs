//! Cores that a launcher's binding leaves unused.
//!
//! Open MPI binds the one or two ranks of a run to a core each and more to a socket each, however
//! many cores there are. Its own affinity, that of the parent process, shows the cores that it had
//! to give. A shell between the two has the rank's own cores, and then none are found.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use super::cores::{PhysicalCore, SYSFS, cores_of_parent, physical_core};
use super::location::RankLocation;
use super::numa::parse_core_list;
use crate::machine::CgroupLimits;

/// Counts the logical processors that this rank's launcher may run on and to which no rank of the
/// machine is bound: only those of physical cores that no rank uses, and no more than the quota
/// allows. 0 if unknown.
///
/// # Panics
/// If there is no such rank.
pub(crate) fn unused_cores(rank: usize, locations: &[RankLocation]) -> usize {
    let Some(cores) = cores_of_parent() else { return 0 };
    let quota_cores = CgroupLimits::of_this_process().cpu_cores;
    LauncherCores { cores, quota_cores }.unused(rank, locations, Path::new(SYSFS))
}

/// Cores that a launcher may give to ranks here.
#[derive(Debug)]
struct LauncherCores {
    /// Logical processors that the launcher may run on.
    cores: Vec<usize>,
    /// CPU time per wall time that the control group allows, in cores.
    quota_cores: Option<f64>,
}

impl LauncherCores {
    fn unused(&self, rank: usize, locations: &[RankLocation], sysfs: &Path) -> usize {
        let own = &locations[rank];
        let used = cores_of(locations, |other| own.is_on_same_machine(other));
        let physical = |core: &usize| physical_core(*core, sysfs);
        let busy: HashSet<PhysicalCore> = used.iter().filter_map(physical).collect();
        let isolated = isolated_cores(sysfs);
        let is_unused = |core: &&usize| {
            let is_busy = physical(core).is_some_and(|physical| busy.contains(&physical));
            !used.contains(core) && !isolated.contains(core) && !is_busy
        };
        let unused = self.cores.iter().filter(is_unused).count();
        let Some(quota) = self.quota_cores else { return unused };
        // The quota is that of this rank's pod alone.
        let used_by_pod = cores_of(locations, |other| own.node() == other.node()).len();
        unused.min((quota as usize).saturating_sub(used_by_pod))
    }
}

/// Returns all cores of the included ranks.
fn cores_of(
    locations: &[RankLocation],
    is_included: impl Fn(&RankLocation) -> bool,
) -> HashSet<usize> {
    let included = locations.iter().filter(|location| is_included(location));
    included.flat_map(|location| location.cores.iter().copied()).collect()
}

/// Returns processors that the scheduler does not use (kernel parameter `isolcpus`).
fn isolated_cores(sysfs: &Path) -> HashSet<usize> {
    let text = fs::read_to_string(sysfs.join("isolated")).unwrap_or_default();
    parse_core_list(&text).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(host: &str, boot_id: &str, cores: &[usize]) -> RankLocation {
        RankLocation { host: host.to_owned(), boot_id: boot_id.to_owned(), cores: cores.to_vec() }
    }

    fn launcher(cores: usize, quota_cores: Option<f64>) -> LauncherCores {
        LauncherCores { cores: (0..cores).collect(), quota_cores }
    }

    #[test]
    fn cores_that_no_rank_of_the_machine_may_run_on_are_unused() {
        let nowhere = Path::new("/nonexistent");
        let ranks = [
            location("pod-0", "x", &[0]),
            location("pod-1", "x", &[1, 2]),
            location("pod-2", "y", &[3]),
        ];
        assert_eq!(launcher(5, None).unused(0, &ranks, nowhere), 2);
        assert_eq!(launcher(3, None).unused(0, &ranks, nowhere), 0);
        assert_eq!(launcher(4, None).unused(2, &ranks, nowhere), 3, "another machine");
        // The quota allows three and a half cores, of which this pod's ranks take one.
        assert_eq!(launcher(8, Some(2.5)).unused(0, &ranks, nowhere), 1);
        assert_eq!(launcher(8, Some(0.5)).unused(0, &ranks, nowhere), 0);
    }

    #[test]
    fn siblings_of_used_processors_and_isolated_ones_do_not_count() {
        let root = tempfile::tempdir().unwrap();
        // Topology: four physical cores of two threads, the second half siblings of the first.
        for cpu in 0..8 {
            let folder = root.path().join(format!("cpu{cpu}/topology"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("physical_package_id"), "0\n").unwrap();
            fs::write(folder.join("core_id"), format!("{}\n", cpu % 4)).unwrap();
        }
        let ranks = [location("a", "x", &[0]), location("a", "x", &[5])];
        assert_eq!(launcher(8, None).unused(0, &ranks, root.path()), 4, "two cores of two threads");
        fs::write(root.path().join("isolated"), "3,6-7\n").unwrap();
        assert_eq!(launcher(8, None).unused(0, &ranks, root.path()), 1);
    }
}
