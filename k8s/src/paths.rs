//! Paths and ports inside the job's containers, on which the image, the operator and the trainer
//! agree.

/// Mount of the claim with the folders of all runs.
pub(super) const RESULTS: &str = "/results";
/// The shared tier of checkpoints.
pub(super) const SHARED: &str = "/shared";
/// The tier of each node.
pub(super) const NVME: &str = "/nvme";
/// Folder of the frozen benchmark file, and of the workload file if it names one.
pub(super) const JOB: &str = "/etc/yardstick";
/// The frozen benchmark file in that folder.
pub(super) const BENCHMARK_FILE: &str = "benchmark.toml";
/// Shared memory for gradients of the ranks of a node, and for NCCL.
pub(super) const SHARED_MEMORY: &str = "/dev/shm";
/// The only other writable folder: the image's root is read-only.
pub(super) const TEMPORARY: &str = "/tmp";
/// Keys of the image's user, mounted by the operator.
pub(super) const SSH_OF_USER: &str = "/home/yardstick/.ssh";
/// Keys if containers run as root. The operator gives files here, and only here, mode 0600, which
/// ssh requires of its caller's files.
pub(super) const SSH_OF_ROOT: &str = "/root/.ssh";
/// All folders of a worker that are not part of the image.
pub(super) const OF_PODS: [&str; 8] =
    [RESULTS, SHARED, NVME, JOB, SHARED_MEMORY, TEMPORARY, SSH_OF_USER, SSH_OF_ROOT];
/// Folders of the image that a worker needs: a mount over one of them hides the program, sshd or
/// `mpirun`.
pub(super) const OF_IMAGE: [&str; 8] = [
    "/usr/local/bin",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/etc",
    "/opt/nvidia",
    "/run/sshd",
    "/home/yardstick",
];
/// Port of each worker's sshd, which the readiness probe connects to.
pub(super) const SSH_PORT: i32 = 2222;
/// Port of the DCGM exporter on every node that has one.
pub(super) const DCGM_PORT: u16 = 9400;

/// Placeholder that Argo replaces by the name of a workflow: part of its run's folder.
pub(super) const WORKFLOW: &str = "{{workflow.name}}";
