//! The hosts of a Slurm allocation, as `sbatch(1)`, section "OUTPUT ENVIRONMENT VARIABLES", says
//! them.

use std::process::Command;

use crate::error::Error;
use crate::hostfile::Host;

const NODES: &str = "SLURM_JOB_NODELIST";
const TASKS: &str = "SLURM_TASKS_PER_NODE";

/// The nodes of the allocation that this process is in, with its tasks as slots; `None` outside of
/// one.
///
/// # Errors
/// [`Error::Request`] when `scontrol` does not run, [`Error::Variable`] for tasks that do not fit
/// the nodes.
pub fn allocated_hosts() -> Result<Option<Vec<Host>>, Error> {
    let Some(nodes) = std::env::var(NODES).ok().filter(|nodes| !nodes.is_empty()) else {
        return Ok(None);
    };
    let names = names(&nodes).map_err(|text| Error::Request {
        text: format!("expected `scontrol show hostnames {nodes}` to list nodes: {text}"),
    })?;
    let found = std::env::var(TASKS).unwrap_or_default();
    let tasks = tasks(&found).filter(|tasks| tasks.len() == names.len());
    let tasks = tasks.ok_or_else(|| Error::Variable {
        variable: TASKS,
        expected: format!(
            "tasks of {} nodes, as in 2(x3),1: in a batch script, or with --hostfile",
            names.len()
        ),
        found,
    })?;
    let hosts = names.into_iter().zip(tasks);
    Ok(Some(hosts.map(|(name, slots)| Host { name, slots: Some(slots) }).collect()))
}

/// Slurm itself knows all forms that a list may have.
fn names(nodes: &str) -> Result<Vec<String>, String> {
    let output = Command::new("scontrol").args(["show", "hostnames", nodes]).output();
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let names = String::from_utf8_lossy(&output.stdout);
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

/// Of each node, of `2(x3),1`.
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
