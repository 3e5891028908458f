//! The world that the supervisor of a launch expects, which it passes to every rank.
//!
//! A launcher that ignores its host file starts all ranks on its own host, or each alone, and still
//! succeeds.

use std::path::Path;

use crate::error::Error;

/// Ranks and hosts of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Number of ranks.
    pub ranks: usize,
    /// Number of different hosts of these ranks.
    pub nodes: usize,
}

const RANKS: &str = "YARDSTICK_EXPECTED_RANKS";
const NODES: &str = "YARDSTICK_EXPECTED_NODES";

/// Variable with the role of a container, set by the mpi-operator.
const OPERATOR_ROLE: &str = "K_MPI_JOB_ROLE";

/// Host file that the mpi-operator mounts in a launcher.
const OPERATOR_HOSTFILE: &str = "/etc/mpi/hostfile";

impl Expected {
    /// Names of the environment variables.
    pub(crate) const VARIABLES: [&'static str; 2] = [RANKS, NODES];

    /// Formats the values as environment variables.
    pub(crate) fn variables(self) -> [(&'static str, String); 2] {
        [(RANKS, self.ranks.to_string()), (NODES, self.nodes.to_string())]
    }

    /// Reads environment variables; `None` without a supervisor.
    ///
    /// # Errors
    /// [`Error::Variable`] for a variable that is not a number.
    pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Error> {
        let number = |name: &'static str| match variable(name) {
            None => Ok(None),
            Some(found) => found.parse().map(Some).map_err(|_| Error::Variable {
                variable: name,
                expected: "a number".to_owned(),
                found,
            }),
        };
        let both = number(RANKS)?.zip(number(NODES)?);
        Ok(both.map(|(ranks, nodes)| Self { ranks, nodes }))
    }

    /// Compares the expected world with the actual one.
    ///
    /// # Errors
    /// [`Error::UnexpectedWorld`].
    pub(super) fn check(self, ranks: usize, nodes: usize) -> Result<(), Error> {
        if (self.ranks, self.nodes) == (ranks, nodes) {
            return Ok(());
        }
        Err(Error::UnexpectedWorld { expected: self, found: Self { ranks, nodes } })
    }
}

/// Refuses a rank in the launcher of an MPIJob whose host file does not name it: `mpirun` has
/// ignored that file, as Open MPI 5 does unless it is named on its command line.
///
/// # Errors
/// [`Error::RankOnLauncher`].
pub(super) fn refuse_on_operator_launcher(
    variable: impl Fn(&str) -> Option<String>,
    host: &str,
) -> Result<(), Error> {
    if variable(OPERATOR_ROLE).as_deref() != Some("launcher") {
        return Ok(());
    }
    let Ok(hosts) = std::fs::read_to_string(Path::new(OPERATOR_HOSTFILE)) else { return Ok(()) };
    if is_listed(&hosts, host) {
        return Ok(()); // it is a worker too
    }
    Err(Error::RankOnLauncher { host: host.to_owned(), hostfile: OPERATOR_HOSTFILE })
}

/// Returns whether a host is listed. Host files have full names, hosts the first part of them.
fn is_listed(hosts: &str, host: &str) -> bool {
    let first_part = |line: &str| line.split([' ', ':', '.']).next().unwrap_or_default().to_owned();
    hosts.lines().any(|line| first_part(line) == first_part(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_is_told() {
        let expected = Expected { ranks: 16, nodes: 2 };
        let variables = expected.variables();
        let lookup = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone())
        };
        assert_eq!(Expected::read(lookup).unwrap(), Some(expected));
        assert_eq!(Expected::read(|_| None).unwrap(), None);
        assert!(Expected::read(|_| Some("many".to_owned())).is_err());
    }

    #[test]
    fn another_world_is_refused() {
        let expected = Expected { ranks: 4, nodes: 2 };
        expected.check(4, 2).unwrap();
        for (ranks, nodes) in [(4, 1), (1, 1), (2, 2)] {
            let error = expected.check(ranks, nodes).unwrap_err().to_string();
            assert!(error.contains("expected 4 ranks on 2 hosts"), "{error}");
        }
    }

    #[test]
    fn launchers_that_are_workers_are_listed() {
        let hosts = "job-launcher.job.ns.svc slots=1\njob-worker-0.job.ns.svc slots=1\n";
        assert!(is_listed(hosts, "job-launcher") && is_listed("b:4\n", "b"));
        assert!(!is_listed(hosts, "job-launcher-x7k2p") && !is_listed(hosts, "job"));
    }
}
