//! CPU and memory that the control groups of a container leave to its ranks.

use super::check::{Check, CheckDesc, Context, Group, Scope};
use super::finding::Finding;
use super::limits::mebibytes;
use crate::machine::CgroupLimits;
use record::files::system::{number_of, text};

/// Check of the CPU quota for the ranks of a node.
pub(super) struct Cpus;

/// Check of the memory for the ranks of a node.
pub(super) struct Memory;

/// Minimum number of cores of a rank, below which it cannot answer other ranks in time.
const CORES_OF_A_RANK_MIN: f64 = 0.5;
/// Maximum share of free memory that ranks may need: above it, storage lacks room for page cache.
const MEMORY_SHARE_MAX: f64 = 0.9;

impl Check for Cpus {
    fn desc(&self) -> &'static CheckDesc {
        &CheckDesc {
            name: "cpus",
            group: Group::Limits,
            scope: Scope::Node,
            inspects: "the CPU quota of the control group, against ranks and their threads",
            thresholds: "fails below half a core for each rank, which then waits for its quota \
                         while others wait for it; warns below one core for each compute thread",
            remedy: "raise the pod's CPU limit or leave it out, or set run.threads",
            fault: "launch/src/doctor/containers.rs: the_quota_has_to_suffice",
        }
    }

    fn run(&self, context: &Context) -> Finding {
        let Some(cores) = CgroupLimits::read_below(&context.root).cpu_cores else {
            return Finding::pass("no quota");
        };
        let ranks = context.local_world;
        let threads = ranks * context.threads;
        let found = format!("a quota of {cores:.1} cores");
        if cores < CORES_OF_A_RANK_MIN * ranks as f64 {
            Finding::fail(found, format!("a core for each of {ranks} ranks"))
        } else if cores < threads as f64 {
            Finding::warn(found, format!("a core for each of {threads} compute threads"))
        } else {
            Finding::pass(found)
        }
    }
}

impl Check for Memory {
    fn desc(&self) -> &'static CheckDesc {
        &CheckDesc {
            name: "memory",
            group: Group::Limits,
            scope: Scope::Node,
            inspects: "free memory under the limits of control groups and MemAvailable, against \
                       the memory plan of the workload",
            thresholds: "fails where the ranks of the node need more (they would be killed); warns \
                         above 90 %, which leaves no page cache for checkpoints",
            remedy: "raise the pod's memory limit, or see `yardstick plan` for what needs less",
            fault: "launch/src/doctor/containers.rs: the_plan_has_to_fit",
        }
    }

    fn run(&self, context: &Context) -> Finding {
        let Some(needed) = context.memory_bytes else {
            return Finding::skip("no --workload to plan for");
        };
        let group = CgroupLimits::read_below(&context.root).memory_free_bytes;
        let meminfo = text(&context.root.join("proc/meminfo"));
        let available = number_of(&meminfo, "MemAvailable:").map(|kilo| (kilo * 1024.0) as u64);
        let Some(free) = group.into_iter().chain(available).min() else {
            return Finding::skip("the kernel does not report how much memory is free");
        };
        let found = format!("{} free", mebibytes(free));
        let ranks = context.local_world;
        let plural = if ranks == 1 { "" } else { "s" };
        let expected = format!("{} for {ranks} rank{plural}", mebibytes(needed));
        if needed > free {
            Finding::fail(found, expected)
        } else if needed as f64 > MEMORY_SHARE_MAX * free as f64 {
            Finding::warn(found, format!("more than {expected}"))
        } else {
            Finding::pass(format!("{found}, {expected}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status::{Fail, Pass, Skip, Warn};
    use super::super::testing::{Host, expect};
    use super::*;

    const GROUPS: (&str, &str) = ("proc/self/cgroup", "0::/\n");

    #[test]
    fn the_quota_has_to_suffice() {
        let host = Host::new(&[GROUPS]);
        host.expect(&Cpus, Pass, "no quota");
        for (quota, status) in [("90000", Fail), ("150000", Warn), ("200000", Pass)] {
            host.write("sys/fs/cgroup/cpu.max", &format!("{quota} 100000\n"));
            host.expect(&Cpus, status, "a quota of");
        }
    }

    #[test]
    fn the_plan_has_to_fit() {
        let host = Host::new(&[GROUPS, ("proc/meminfo", "MemAvailable: 102400 kB\n")]);
        host.expect(&Memory, Skip, "no --workload");
        let needs = |mebibytes: u64| {
            let context = Context { memory_bytes: Some(mebibytes << 20), ..host.context() };
            Memory.run(&context)
        };
        expect(needs(80), Pass, "100 MiB free, 80 MiB for 2 ranks");
        expect(needs(95), Warn, "100 MiB free");
        expect(needs(101), Fail, "100 MiB free");
        host.write("sys/fs/cgroup/memory.max", "67108864\n");
        host.write("sys/fs/cgroup/memory.current", "4194304\n");
        expect(needs(80), Fail, "60 MiB free");
    }
}
