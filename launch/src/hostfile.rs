//! The hosts of a job, as launchers list them in a file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// A host on which ranks may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name, as it is to be resolved.
    pub name: String,
    /// How many ranks it takes; `None` where the file does not say.
    pub slots: Option<usize>,
}

/// Where the mpi-operator mounts it in the launcher.
const OPERATOR_FILE: &str = "/etc/mpi/hostfile";

/// Variables that name it: of Open MPI as the mpi-operator sets it, and of both kinds of Hydra.
const VARIABLES: [&str; 3] =
    ["OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"];

/// The host file that a launcher's environment names, or that of the mpi-operator where it exists.
pub fn default_hostfile() -> Option<PathBuf> {
    let named = VARIABLES.iter().find_map(std::env::var_os).filter(|path| !path.is_empty());
    named.map(PathBuf::from).or_else(|| {
        let path = PathBuf::from(OPERATOR_FILE);
        path.is_file().then_some(path)
    })
}

/// Reads a host file: a host a line, as in `HOST slots=N` (Open MPI) or `HOST:N` (Hydra, Intel
/// MPI).
///
/// # Errors
/// [`Error::Hostfile`] for a file that cannot be read, has a malformed line, no host, or a host
/// twice.
pub fn read_hostfile(path: &Path) -> Result<Vec<Host>, Error> {
    let refused = |text: String| Error::Hostfile { path: path.to_owned(), text };
    let text = fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
    parse(&text).map_err(refused)
}

fn parse(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts: Vec<Host> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let number = index + 1;
        let host = host(line).map_err(|found| {
            format!("line {number}: expected HOST, HOST slots=N or HOST:N, found {found:?}")
        })?;
        if hosts.iter().any(|other| other.name == host.name) {
            return Err(format!("line {number}: host {} is listed twice", host.name));
        }
        hosts.push(host);
    }
    if hosts.is_empty() {
        Err("expected at least one host, found none".to_owned())
    } else {
        Ok(hosts)
    }
}

/// The host in a line; else the part that is malformed.
fn host(line: &str) -> Result<Host, &str> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let slots_of = |text: &str| text.parse().ok().filter(|&slots: &usize| slots > 0);
    if let Some((name, slots)) = name.split_once(':') {
        let slots = Some(slots_of(slots).ok_or(line)?);
        return Ok(Host { name: name.to_owned(), slots });
    }
    let mut slots = None;
    for word in rest.split_whitespace() {
        match word.split_once('=') {
            Some(("slots", value)) => slots = Some(slots_of(value).ok_or(word)?),
            Some(("max_slots" | "max-slots", _)) => {}
            _ => return Err(word),
        }
    }
    Ok(Host { name: name.to_owned(), slots })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_read() {
        let open_mpi = "# workers\njob-worker-0.job.ns.svc slots=8\n\n\
                        job-worker-1.job.ns.svc  slots=8 max_slots=8\n";
        let hydra = "a:4\nb:4 # spare\nc\n";
        let found = |text| {
            let hosts = parse(text).unwrap();
            hosts.into_iter().map(|host| (host.name, host.slots)).collect::<Vec<_>>()
        };
        let named = |name: &str, slots| (name.to_owned(), slots);
        assert_eq!(
            found(open_mpi),
            [named("job-worker-0.job.ns.svc", Some(8)), named("job-worker-1.job.ns.svc", Some(8))]
        );
        assert_eq!(found(hydra), [named("a", Some(4)), named("b", Some(4)), named("c", None)]);
    }

    #[test]
    fn malformed_lines_are_named() {
        for (text, expected) in [
            ("a slots=many", "line 1: expected HOST, HOST slots=N or HOST:N, found \"slots=many\""),
            ("a\nb slot=2", "found \"slot=2\""),
            ("a:0", "found \"a:0\""),
            ("a\n\na slots=2", "line 3: host a is listed twice"),
            ("# nothing\n", "expected at least one host"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
