//! How a host is reached: as a child where it is this one, and else over ssh or by Slurm.

use std::net::ToSocketAddrs;
use std::path::Path;
use std::process::Command;

use crate::host_name;

/// By what a host is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// ssh.
    Ssh,
    /// Slurm's `srun`, in the allocation of this process. Many clusters forbid ssh between nodes.
    Srun,
}

/// Of its own, as a connection that is shared has the settings of who opened it.
const SSH: [&str; 14] = [
    "-T",
    "-x",
    "-o",
    "ControlMaster=no",
    "-o",
    "ControlPath=none",
    "-o",
    "RemoteCommand=none",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=5",
    "-o",
    "LogLevel=ERROR",
];

/// A step of one task beside those of `mpirun`, of which it takes nothing away. What a batch script
/// asks for its own ranks does not count.
const SRUN: [&str; 7] = [
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--ntasks-per-node=1",
    "--cpu-bind=none",
    "--mpi=none",
    "--quiet",
];

/// Port that a name is resolved with; it is not connected to.
const SSH_PORT: u16 = 22;

impl Reach {
    /// Runs a program on the host.
    pub(super) fn command(self, host: &str, program: &Path, arguments: &[&str]) -> Command {
        if is_this_host(host) {
            let mut command = Command::new(program);
            command.args(arguments);
            return command;
        }
        let mut command;
        match self {
            Self::Ssh => {
                command = Command::new("ssh");
                command.args(SSH).arg("--").arg(host).arg("exec");
                command.arg(quoted(&program.to_string_lossy()));
                command.args(arguments.iter().map(|word| quoted(word)));
            }
            Self::Srun => {
                command = Command::new("srun");
                command.args(SRUN).arg(format!("--nodelist={host}")).arg(program).args(arguments);
            }
        }
        command
    }

    /// Looks whether the host has an address, where that is needed.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn find(self, host: &str) -> Result<(), String> {
        if self == Self::Srun || is_this_host(host) {
            return Ok(());
        }
        let found = (host, SSH_PORT).to_socket_addrs();
        found.map(drop).map_err(|error| format!("its name has no address yet ({error})"))
    }
}

/// Host files have full names, hosts may have the first part of them.
fn is_this_host(name: &str) -> bool {
    let own = host_name();
    name == "localhost" || name == own || name.split('.').next() == Some(&own)
}

/// A word for the shell of the other host.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
