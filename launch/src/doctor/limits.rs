//! Limits of this process in `/proc/self/limits`: proc(5), getrlimit(2).

use std::path::Path;

use super::adapters::Port;
use super::check::{Check, CheckDesc, Context, Group, Scope};
use super::finding::Finding;
use record::files::system::{number, text};

/// Check of lockable memory, which RDMA needs for every buffer it registers.
pub(super) struct Memlock;

/// Check of the file descriptors of a process.
pub(super) struct OpenFiles;

/// Check of processes and threads.
pub(super) struct Processes;

/// Size of the buffers that NCCL and MPI register at once, with room for gradients.
const MEMLOCK_BYTES_MIN: u64 = 1 << 30;

/// Number of files of the program and of a run, before any connection.
const FILES_OF_A_RANK: u64 = 256;
/// Number of sockets to each peer: Open MPI and NCCL open one or two for each network between them.
const FILES_OF_A_PEER: u64 = 4;

/// Number of threads of a rank besides its compute threads: MPI, NCCL, storage, telemetry.
const THREADS_OF_A_RANK: u64 = 32;

/// Bit of CAP_IPC_LOCK in a set of capabilities: capabilities(7), `linux/capability.h`.
const CAP_IPC_LOCK: u32 = 14;

impl Check for Memlock {
    fn desc(&self) -> &'static CheckDesc {
        &CheckDesc {
            name: "memlock",
            group: Group::Limits,
            scope: Scope::Rank,
            inspects: "RLIMIT_MEMLOCK and CAP_IPC_LOCK of the effective set",
            thresholds: "with an RDMA adapter in the container (on CPUs: of InfiniBand): fails \
                         below 1 GiB, warns below unlimited (if it cannot lock memory, NCCL \
                         silently falls back to sockets)",
            remedy: "set LimitMEMLOCK=infinity for the container runtime, or run as root with \
                     IPC_LOCK: the capability does not reach a container of another user",
            fault: "launch/src/doctor/limits.rs: rdma_needs_memory_that_may_be_locked",
        }
    }

    fn run(&self, context: &Context) -> Finding {
        let Some(limit) = limit(&context.root, "Max locked memory") else { return unknown() };
        let Limit::Of(bytes) = limit else { return Finding::pass("unlimited") };
        let found = format!("{}, no CAP_IPC_LOCK", mebibytes(bytes));
        match has_ipc_lock(&context.root) {
            true => Finding::pass(format!("{}, but CAP_IPC_LOCK", mebibytes(bytes))),
            false if !locks_memory(context) => {
                Finding::skip(format!("{found}; no RDMA adapter here needs more"))
            }
            false if bytes < MEMLOCK_BYTES_MIN => {
                Finding::fail(found, format!("at least {}", mebibytes(MEMLOCK_BYTES_MIN)))
            }
            false => Finding::warn(found, "unlimited"),
        }
    }
}

impl Check for OpenFiles {
    fn desc(&self) -> &'static CheckDesc {
        &CheckDesc {
            name: "open_files",
            group: Group::Limits,
            scope: Scope::Rank,
            inspects: "RLIMIT_NOFILE",
            thresholds: "fails below 256, which a rank needs without connections; warns below 256 \
                         plus 4 for each rank of the job, which it needs if it is connected to all \
                         of them",
            remedy: "raise LimitNOFILE of the container runtime, or `ulimit -n`",
            fault: "launch/src/doctor/limits.rs: files_and_processes_have_to_suffice",
        }
    }

    fn run(&self, context: &Context) -> Finding {
        let all = FILES_OF_A_RANK + FILES_OF_A_PEER * context.world as u64;
        match limit(&context.root, "Max open files") {
            Some(Limit::Of(found)) if (FILES_OF_A_RANK..all).contains(&found) => {
                Finding::warn(found.to_string(), format!("at least {all}"))
            }
            Some(Limit::Of(found)) if found >= all => Finding::pass(found.to_string()),
            limit => judge(limit, FILES_OF_A_RANK),
        }
    }
}

impl Check for Processes {
    fn desc(&self) -> &'static CheckDesc {
        &CheckDesc {
            name: "processes",
            group: Group::Limits,
            scope: Scope::Node,
            inspects: "RLIMIT_NPROC and `pids.max` of the control group",
            thresholds: "each rank of the node needs 32 threads beside its compute threads (a \
                         thread counts as a process): fails below the sum, warns below twice that",
            remedy: "raise `ulimit -u`, or podPidsLimit of the kubelet",
            fault: "launch/src/doctor/limits.rs: files_and_processes_have_to_suffice",
        }
    }

    fn run(&self, context: &Context) -> Finding {
        let of_rank = THREADS_OF_A_RANK + context.threads as u64;
        let own = limit(&context.root, "Max processes");
        let group = pids_max(&context.root).map(Limit::Of);
        judge(own.into_iter().chain(group).min(), of_rank * context.local_world as u64)
    }
}

/// Limit, ordered so that the smallest is first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Limit {
    Of(u64),
    Unlimited,
}

/// Reads the soft limit of this name.
fn limit(root: &Path, name: &str) -> Option<Limit> {
    let limits = text(&root.join("proc/self/limits"));
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(Limit::Unlimited),
        number => number.parse().ok().map(Limit::Of),
    }
}

/// Reads the limit of the top control group that this process sees: in a container, its own.
fn pids_max(root: &Path) -> Option<u64> {
    let groups = root.join("sys/fs/cgroup");
    let found = ["pids.max", "pids/pids.max"].into_iter().find_map(|it| number(&groups.join(it)));
    found.map(|number| number as u64)
}

fn judge(limit: Option<Limit>, needed: u64) -> Finding {
    match limit {
        None => unknown(),
        Some(Limit::Unlimited) => Finding::pass("unlimited"),
        Some(Limit::Of(found)) if found < needed => {
            Finding::fail(found.to_string(), format!("at least {needed}"))
        }
        Some(Limit::Of(found)) if found < 2 * needed => {
            Finding::warn(found.to_string(), format!("{} for safety", 2 * needed))
        }
        Some(Limit::Of(found)) => Finding::pass(found.to_string()),
    }
}

fn unknown() -> Finding {
    Finding::skip("/proc/self/limits does not tell")
}

fn has_ipc_lock(root: &Path) -> bool {
    let status = text(&root.join("proc/self/status"));
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    bits.is_some_and(|bits| bits & (1 << CAP_IPC_LOCK) != 0)
}

/// Returns whether the job reaches peers through locked memory. On CPUs, Ethernet and EFA adapters
/// carry sockets.
fn locks_memory(context: &Context) -> bool {
    Port::used(context).iter().any(|port| context.on_cuda || port.is_infiniband())
}

/// Formats a size, as in `8 MiB`.
pub(super) fn mebibytes(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{bytes} bytes"),
        mebibytes => format!("{mebibytes} MiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status::{Fail, Pass, Skip, Warn};
    use super::super::testing::{Host, expect};
    use super::*;

    fn host(locked: &str, capabilities: &str) -> Host {
        let limits = format!("Max locked memory         {locked}   {locked}   bytes\n");
        let status = format!("CapInh:\t0000000000000000\nCapEff:\t{capabilities}\n");
        Host::new(&[("proc/self/limits", &limits), ("proc/self/status", &status)])
    }

    #[test]
    fn rdma_needs_memory_that_may_be_locked() {
        const NONE: &str = "0000000000000000";
        const LINK: &str = "sys/class/infiniband/mlx5_0/ports/1/link_layer";
        let short = host("8388608", NONE);
        short.expect(&Memlock, Skip, "8 MiB, no CAP_IPC_LOCK; no RDMA adapter");
        short.write(LINK, "InfiniBand\n");
        short.expect(&Memlock, Skip, "no RDMA adapter here"); // the node's, not the pod's
        short.plant_adapter("mlx5_0");
        short.expect(&Memlock, Fail, "8 MiB, no CAP_IPC_LOCK");
        short.write(LINK, "Ethernet\n");
        short.expect(&Memlock, Skip, "no RDMA adapter here");
        let on_gpus = Context { on_cuda: true, ..short.context() };
        expect(Memlock.run(&on_gpus), Fail, "8 MiB, no CAP_IPC_LOCK");
        for (locked, capabilities, status) in [
            ("8388608", "0000000000004000", Pass),
            ("8388608", "00000000a80425fb", Fail),
            ("unlimited", NONE, Pass),
            ("4294967296", NONE, Warn),
        ] {
            let host = host(locked, capabilities);
            host.write(LINK, "InfiniBand\n");
            host.plant_adapter("mlx5_0");
            host.expect(&Memlock, status, "");
        }
        Host::new(&[]).expect(&Memlock, Skip, "does not tell");
    }

    #[test]
    fn files_and_processes_have_to_suffice() {
        let limits = "Max processes    100   200  processes\nMax open files   300   300  files\n";
        let host = Host::new(&[("proc/self/limits", limits)]);
        host.expect(&OpenFiles, Pass, "300");
        host.expect(&Processes, Warn, "100");
        let job = Context { world: 64, local_world: 8, ..host.context() };
        let files = expect(OpenFiles.run(&job), Warn, "300");
        assert_eq!(files.expected.as_deref(), Some("at least 512"));
        host.write("proc/self/limits", &limits.replace("300", "200"));
        host.expect(&OpenFiles, Fail, "200");
        expect(Processes.run(&job), Fail, "100");
        host.write("sys/fs/cgroup/pids.max", "60\n");
        host.expect(&Processes, Fail, "60");
        host.write("proc/self/limits", "Max processes unlimited unlimited\n");
        host.write("sys/fs/cgroup/pids.max", "max\n");
        host.expect(&Processes, Pass, "unlimited");
    }
}
