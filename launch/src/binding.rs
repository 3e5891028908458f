//! Cores that a launcher's binding leaves to nobody.
//!
//! Open MPI binds the one or two ranks of a run to a core each and more to a socket each, however
//! many cores there are. What it had to give is what it may run on itself: the process that started
//! this one. A shell between the two has the rank's own cores, and then nothing is missed.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use crate::cgroup::Limits;
use crate::threads;
use crate::topology::Presence;

/// What a launcher may give to ranks here.
#[derive(Debug)]
struct Room {
    /// Logical processors that it may run on.
    cores: Vec<usize>,
    /// CPU time per wall time that the control group allows, in cores.
    quota_cores: Option<f64>,
}

/// How many logical processors this rank's launcher may run on and no rank of the machine is bound
/// to: those of physical cores of which none uses any, and no more than the quota has time for. 0
/// when it cannot be known.
///
/// # Panics
/// When there is no such rank.
pub(crate) fn unused_cores(rank: usize, presences: &[Presence]) -> usize {
    let Some(cores) = threads::cores_of_parent() else { return 0 };
    let quota_cores = Limits::of_this_process().cpu_cores;
    let system = Path::new("/sys/devices/system/cpu");
    Room { cores, quota_cores }.unused(rank, presences, system)
}

impl Room {
    fn unused(&self, rank: usize, presences: &[Presence], system: &Path) -> usize {
        let mine = &presences[rank];
        let used_by = |ranks: &dyn Fn(&Presence) -> bool| -> HashSet<usize> {
            let ranks = presences.iter().filter(|other| ranks(other));
            ranks.flat_map(|other| other.cores.iter().copied()).collect()
        };
        let used = used_by(&|other| mine.is_beside(other));
        let place = |core: &usize| match threads::physical_core(*core, system) {
            [Some(package), Some(number)] => Some((package, number)),
            _ => None,
        };
        let busy: HashSet<_> = used.iter().filter_map(place).collect();
        let kept = isolated(system);
        let is_busy = |core: &usize| place(core).is_some_and(|place| busy.contains(&place));
        let is_unused =
            |core: &&usize| !used.contains(core) && !kept.contains(core) && !is_busy(core);
        let unused = self.cores.iter().filter(is_unused).count();
        // The quota is of this rank's pod alone.
        let spent = used_by(&|other| mine.node() == other.node()).len();
        let rest = |quota: f64| (quota as usize).saturating_sub(spent);
        unused.min(self.quota_cores.map_or(usize::MAX, rest))
    }
}

/// Processors that the kernel was started to keep free, as in `2-3,8`: nobody is meant to use them.
fn isolated(system: &Path) -> HashSet<usize> {
    let text = fs::read_to_string(system.join("isolated")).unwrap_or_default();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(host: &str, boot: &str, cores: &[usize]) -> Presence {
        Presence { host: host.to_owned(), boot: boot.to_owned(), cores: cores.to_vec() }
    }

    fn room(cores: usize, quota_cores: Option<f64>) -> Room {
        Room { cores: (0..cores).collect(), quota_cores }
    }

    #[test]
    fn what_no_rank_of_the_machine_may_run_on_is_unused() {
        let nowhere = Path::new("/nonexistent");
        let ranks = [
            presence("pod-0", "x", &[0]),
            presence("pod-1", "x", &[1, 2]),
            presence("pod-2", "y", &[3]),
        ];
        assert_eq!(room(5, None).unused(0, &ranks, nowhere), 2);
        assert_eq!(room(3, None).unused(0, &ranks, nowhere), 0);
        assert_eq!(room(4, None).unused(2, &ranks, nowhere), 3, "another machine");
        // Time for three and a half cores, of which this pod's ranks take one.
        assert_eq!(room(8, Some(2.5)).unused(0, &ranks, nowhere), 1);
        assert_eq!(room(8, Some(0.5)).unused(0, &ranks, nowhere), 0);
    }

    #[test]
    fn siblings_of_used_processors_and_isolated_ones_are_not_missed() {
        let root = tempfile::tempdir().unwrap();
        // Four physical cores of two threads each, the second half of them siblings of the first.
        for cpu in 0..8 {
            let folder = root.path().join(format!("cpu{cpu}/topology"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("physical_package_id"), "0\n").unwrap();
            fs::write(folder.join("core_id"), format!("{}\n", cpu % 4)).unwrap();
        }
        let ranks = [presence("a", "x", &[0]), presence("a", "x", &[5])];
        assert_eq!(room(8, None).unused(0, &ranks, root.path()), 4, "two cores of two threads");
        fs::write(root.path().join("isolated"), "3,6-7\n").unwrap();
        assert_eq!(room(8, None).unused(0, &ranks, root.path()), 1);
    }
}
