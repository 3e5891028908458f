//! `mpirun` for the tests of all crates: its program, and its settings on this machine.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// The launcher of the MPI library in this binary: `scripts/test-mpi.sh` names another one.
pub fn program() -> String {
    std::env::var("YARDSTICK_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned())
}

/// `mpirun`, with what it needs.
pub fn command() -> Command {
    let mut command = Command::new(program());
    set_environment(&mut command);
    command
}

/// Sets the variables with which a launcher starts more ranks than cores, as root, beside other
/// launchers, and with which ranks that wait leave the cores to others. Each library reads its own.
pub fn set_environment(command: &mut Command) {
    for prefix in ["OMPI", "PRTE"] {
        command.env(format!("{prefix}_ALLOW_RUN_AS_ROOT"), "1");
        command.env(format!("{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM"), "1");
    }
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command.env("OMPI_MCA_mpi_yield_when_idle", "1");
    command.env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    command.env("TMPDIR", session_folder());
}

thread_local! {
    static SESSIONS: TempDir = tempfile::tempdir().unwrap();
}

/// A folder for the files of one launcher, which is removed with the thread. Without, all launchers
/// of a user share one: the last to end removes it, even while another one starts.
fn session_folder() -> PathBuf {
    SESSIONS.with(|all| tempfile::tempdir_in(all.path()).unwrap().keep())
}
