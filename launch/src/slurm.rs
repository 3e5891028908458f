//! The hosts of a Slurm allocation, by its variables: `sbatch(1)`, section "OUTPUT ENVIRONMENT
//! VARIABLES".

use std::io::ErrorKind;
use std::process::Command;

use crate::error::Error;
use crate::hostfile::Host;
use crate::supervisor::Transport;
use record::text::count;

const NODES: &str = "SLURM_JOB_NODELIST";
const TASKS: &str = "SLURM_TASKS_PER_NODE";

/// Nodes of an allocation, with its tasks as slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// Hosts of the allocation.
    pub hosts: Vec<Host>,
    /// Way to reach the hosts.
    pub transport: Transport,
}

/// Returns the allocation of this process; `None` outside of one.
///
/// A container may have the variables of Slurm but not its programs. If the allocation has one
/// node, that may be this host.
///
/// # Errors
/// [`Error::Request`] when Slurm's programs do not run, [`Error::Variable`] for tasks that do not
/// fit the nodes.
pub fn allocation() -> Result<Option<Allocation>, Error> {
    let Some(nodes) = std::env::var(NODES).ok().filter(|nodes| !nodes.is_empty()) else {
        return Ok(None);
    };
    let (names, transport) = match names(&nodes) {
        Ok(names) => (names, Transport::Srun),
        Err(Unlisted::NoProgram(_)) if is_this_host(&nodes) => {
            (vec!["localhost".to_owned()], Transport::Ssh)
        }
        Err(Unlisted::NoProgram(text) | Unlisted::Failed(text)) => {
            let text = format!(
                "expected Slurm to list the nodes {nodes} of this allocation: {text}\n  \
                 hint: where Slurm's programs are not, as in a container, name hosts that ssh \
                 reaches with --hostfile"
            );
            return Err(Error::Request { text });
        }
    };
    let found = std::env::var(TASKS).unwrap_or_default();
    let tasks = tasks(&found).filter(|tasks| tasks.len() == names.len());
    let tasks = tasks.ok_or_else(|| Error::Variable {
        variable: TASKS,
        expected: format!(
            "tasks of {}, as in 2(x3),1: in a batch script, or with --hostfile",
            count(names.len(), "node")
        ),
        found,
    })?;
    let hosts = names.iter().zip(tasks).map(|(name, slots)| Host::new(name, Some(slots)));
    Ok(Some(Allocation { hosts: hosts.collect(), transport }))
}

/// Returns whether an allocation has one node and this process runs on it. A shell that `salloc`
/// starts may run on another host.
fn is_this_host(nodes: &str) -> bool {
    let first = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_started_by_slurm = || BY_SLURM.iter().any(|name| std::env::var_os(name).is_some());
    let is_one = !nodes.contains(['[', ',']);
    is_one && (first(nodes) == first(&record::machine::host_name()) || is_started_by_slurm())
}

/// Variables of processes that Slurm has started on nodes.
const BY_SLURM: [&str; 2] = ["SLURMD_NODENAME", "SLURM_PROCID"];

/// Reason why Slurm does not list the nodes.
enum Unlisted {
    /// Slurm's programs are missing, as in a container.
    NoProgram(String),
    Failed(String),
}

/// Lists the nodes by Slurm, which knows all list forms. Requires `srun`, which reaches them, too.
fn names(nodes: &str) -> Result<Vec<String>, Unlisted> {
    output_of("srun", &["--version"])?;
    let names = output_of("scontrol", &["show", "hostnames", nodes])?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

fn output_of(program: &str, arguments: &[&str]) -> Result<String, Unlisted> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Unlisted::NoProgram(format!("{program}: {error}")),
        _ => Unlisted::Failed(format!("{program}: {error}")),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Unlisted::Failed(format!("{program}: {}", said.trim())))
}

/// Parses the tasks of each node from a text such as `2(x3),1`.
fn tasks(text: &str) -> Option<Vec<usize>> {
    let mut tasks = Vec::new();
    for part in text.split(',') {
        let (count, nodes) = match part.split_once("(x") {
            Some((count, nodes)) => (count, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        tasks.extend(std::iter::repeat_n(count.parse::<usize>().ok()?, nodes));
    }
    Some(tasks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_those_of_each_node() {
        assert_eq!(tasks("2(x3),1").unwrap(), [2, 2, 2, 1]);
        assert_eq!(tasks("8").unwrap(), [8]);
        for malformed in ["", "2(x3", "2(y3)", "a"] {
            assert_eq!(tasks(malformed), None, "{malformed:?}");
        }
    }
}
