//! Ways to reach a host: as a child process if it is this host, or else over ssh or by Slurm.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::process::Command;

use crate::hostfile::{Host, are_same_name};
use record::machine::host_name;

/// Way to reach a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// ssh.
    Ssh,
    /// Slurm's `srun`, in the allocation of this process. Many clusters forbid ssh between nodes.
    Srun,
}

/// Options of ssh. They avoid a shared connection, which has the settings of whoever opened it.
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

/// Options of an `srun` step of one task beside those of `mpirun`, from which it takes no
/// resources. Settings of a batch script for its own ranks do not apply.
const SRUN: [&str; 7] = [
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--ntasks-per-node=1",
    "--cpu-bind=none",
    "--mpi=none",
    "--quiet",
];

/// Port to resolve a name with; it is not connected to.
const SSH_PORT: u16 = 22;

impl Transport {
    /// Builds the command that runs a program on the host. Waits for DNS.
    ///
    /// # Errors
    /// A sentence on a host without an address, if one is needed.
    pub(super) fn command(
        self,
        host: &Host,
        program: &Path,
        arguments: &[String],
    ) -> Result<Command, String> {
        let name = &host.name;
        if is_own_name(name) || (self == Self::Ssh && is_own_address(name)?) {
            let mut command = Command::new(program);
            command.args(arguments);
            return Ok(command);
        }
        let mut command;
        match self {
            Self::Ssh => {
                command = Command::new("ssh");
                command.args(SSH);
                if let Some(port) = host.port {
                    command.args(["-p", &port.to_string()]);
                }
                command.arg("--").arg(host.address()).arg("exec");
                command.arg(quoted(&program.to_string_lossy()));
                command.args(arguments.iter().map(|word| quoted(word)));
            }
            Self::Srun => {
                command = Command::new("srun");
                command.args(SRUN).arg(format!("--nodelist={name}")).arg(program).args(arguments);
            }
        }
        Ok(command)
    }
}

fn is_own_name(name: &str) -> bool {
    ["localhost", &host_name()].iter().any(|own| are_same_name(name, own))
}

/// Returns whether an address of the name belongs to this host, the criterion that `mpirun` uses as
/// well. Host files have full names, while hosts may have only the first part, which other domains
/// may also have.
///
/// # Errors
/// A sentence on a name without an address.
fn is_own_address(name: &str) -> Result<bool, String> {
    let found = (name, SSH_PORT).to_socket_addrs();
    let mut found = found.map_err(|error| format!("its name has no address yet ({error})"))?;
    Ok(found.any(|address| own_address_towards(address).is_ok_and(|own| own == address.ip())))
}

/// Returns the source address of packets to an address: the address itself if it belongs to this
/// host. Nothing is sent.
fn own_address_towards(address: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(address)?;
    Ok(socket.local_addr()?.ip())
}

/// Quotes a word for the shell of the other host.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_known_by_its_name_and_its_addresses() {
        let is_own = |name: &str| is_own_name(name) || is_own_address(name) == Ok(true);
        let own = host_name();
        for name in ["localhost", "LOCALHOST.", &own, &own.to_uppercase(), "127.0.0.1"] {
            assert!(is_own(name), "{name}");
        }
        let of_another_domain = format!("{own}.another-domain.invalid");
        for name in ["192.0.2.1", "127.0.0.2", &of_another_domain] {
            assert!(!is_own(name), "{name}");
        }
    }

    #[test]
    fn ssh_connects_to_the_port_of_a_host() {
        let host = Host { port: Some(2222), ..Host::new("192.0.2.1", None) };
        let command = Transport::Ssh.command(&host, Path::new("yardstick"), &[]).unwrap();
        let arguments: Vec<_> = command.get_args().collect();
        assert!(arguments.windows(3).any(|words| words == ["-p", "2222", "--"]), "{arguments:?}");
    }
}
