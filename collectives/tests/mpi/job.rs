//! Runs this executable as an MPI job.

use std::fmt;
use std::path::Path;
use std::process::Command;

use support::{Running, launcher};
use yardstick_collectives::Mpi;

use crate::roles::{Role, Sharing};

/// A job that is over.
pub(crate) struct Job {
    /// mpirun returned 0.
    pub(crate) success: bool,
    /// Last text that each rank wrote; empty if none.
    pub(crate) outcomes: Vec<String>,
    output: String,
}

impl Job {
    /// Runs a role on `world` ranks of one node.
    pub(crate) fn run(world: usize, role: Role) -> Self {
        Self::run_on(world, role, Sharing::On)
    }

    /// Runs a role on `world` ranks with the given kind of sharing.
    pub(crate) fn run_on(world: usize, role: Role, sharing: Sharing) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut command = mpirun(role);
        command.args(["-np", &world.to_string()]);
        if role == Role::Survive && !is_open_mpi() {
            // MPICH's mpirun kills all ranks when a process that it started itself is killed (and
            // sends SIGUSR1 otherwise): a shell in between.
            command.args(["sh", "-c", "trap : USR1; \"$0\" \"$@\"; exit $?"]);
        }
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", "rank_of_a_job", "--nocapture"]);
        command.env("YARDSTICK_TEST_ROLE", role.name());
        command.env("YARDSTICK_TEST_FOLDER", folder.path());
        sharing.set_in(&mut command);
        let file = std::fs::File::create(&log).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let code = Running::spawn(command).wait();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            success: code == Some(0),
            outcomes: (0..world).map(|rank| read(&folder.path().join(rank.to_string()))).collect(),
            output: format!("{code:?}\n{}", read(&log)),
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "outcomes {:?}, mpirun {}", self.outcomes, self.output)
    }
}

/// mpirun for a role.
fn mpirun(role: Role) -> Command {
    let mut command = launcher::command();
    let arguments = std::env::var("YARDSTICK_MPIRUN_ARGS").unwrap_or_default();
    command.args(arguments.split_whitespace());
    command.env("OMPI_MCA_hwloc_base_binding_policy", "none");
    if role == Role::Survive {
        command.arg(if is_open_mpi() { "--enable-recovery" } else { "-disable-auto-cleanup" });
    }
    command
}

fn is_open_mpi() -> bool {
    Mpi::library_version().contains("Open MPI")
}

/// Returns whether a process exists and is not just waiting to be reaped.
pub(crate) fn is_running(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}
