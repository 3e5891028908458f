//! Runs this executable as an MPI job.

use std::fmt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use support::launcher;
use yardstick_collectives::Mpi;

use crate::roles::{Role, Sharing};

/// No job takes longer than this, whatever goes wrong.
const LIMIT: Duration = Duration::from_secs(100);

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
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("{command:?}: {error}; scripts/setup.sh installs Open MPI")
        });
        let status = wait(child);
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            success: status.is_some_and(|status| status.success()),
            outcomes: (0..world).map(|rank| read(&folder.path().join(rank.to_string()))).collect(),
            output: format!("{status:?}\n{}", read(&log)),
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

fn wait(mut child: Child) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// Returns whether a process exists and is not just waiting to be reaped.
pub(crate) fn is_running(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}
