//! The hosts of a job in a launcher's host file.

use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// A host on which ranks may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Name to resolve.
    pub name: String,
    /// User to log in as; `None` if the file does not name one.
    pub user: Option<String>,
    /// Port of its ssh server; `None` if the file does not name one.
    pub port: Option<u16>,
    /// Number of ranks that it takes; `None` if the file does not give one.
    pub slots: Option<usize>,
}

impl Host {
    /// Creates a host with only a name, and optional slots.
    pub fn new(name: &str, slots: Option<usize>) -> Self {
        Self { name: name.to_owned(), user: None, port: None, slots }
    }

    /// Formats the host as `NAME` or `USER@NAME`, as ssh and Open MPI accept it.
    pub(crate) fn address(&self) -> String {
        self.user.as_ref().map_or_else(|| self.name.clone(), |user| format!("{user}@{}", self.name))
    }
}

/// Returns whether two names are equal in DNS, ignoring case and the dot of the root. Parts of a
/// name count: `node1` of another domain is another host.
pub(crate) fn are_same_name(one: &str, other: &str) -> bool {
    let rooted = |name: &str| name.trim_end_matches('.').to_ascii_lowercase();
    rooted(one) == rooted(other)
}

/// Host file that the mpi-operator mounts in the launcher.
const OPERATOR_FILE: &str = "/etc/mpi/hostfile";

/// Variables that name it: of Open MPI as the mpi-operator sets it, and of both kinds of Hydra.
const VARIABLES: [&str; 3] =
    ["OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"];

/// Finds the host file of a launcher's environment, or that of the mpi-operator if it exists.
pub fn default_hostfile() -> Option<PathBuf> {
    let named = VARIABLES.iter().find_map(std::env::var_os).filter(|path| !path.is_empty());
    named.map(PathBuf::from).or_else(|| {
        let path = PathBuf::from(OPERATOR_FILE);
        path.is_file().then_some(path)
    })
}

/// Reads a host file as `mpirun` does: a host per line, as in `HOST slots=N` (Open MPI) or `HOST:N`
/// (Hydra, Intel MPI). Slots of a repeated host are added, as in the files of PBS, where each line
/// of a host is a slot.
///
/// The full syntax of a line is in Open MPI's `orte/util/hostfile/hostfile_lex.l`, and in
/// `HYDU_process_mfile_token` of MPICH.
///
/// # Errors
/// [`Error::Hostfile`] for a file that cannot be read, has a malformed line, or no host.
pub fn read_hostfile(path: &Path) -> Result<Vec<Host>, Error> {
    let refused = |text: String| Error::Hostfile { path: path.to_owned(), text };
    let bytes = fs::read(path).map_err(|error| refused(error.to_string()))?;
    // Comments may be in any encoding.
    parse(&String::from_utf8_lossy(&bytes)).map_err(refused)
}

fn parse(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts: Vec<Host> = Vec::new();
    let lines = without_comments(text.trim_start_matches('\u{feff}'));
    for (index, line) in lines.iter().map(|line| line.trim()).enumerate() {
        if line.is_empty() {
            continue;
        }
        let number = index + 1;
        let host = host(line).map_err(|found| {
            format!("line {number}: expected HOST, HOST slots=N or HOST:N, found {found:?}")
        })?;
        match hosts.iter_mut().find(|other| are_same_name(&other.name, &host.name)) {
            Some(other) => {
                let slots = [other.slots, host.slots].map(|slots| slots.unwrap_or(1));
                other.slots = Some(slots.iter().sum());
            }
            None => hosts.push(host),
        }
    }
    if hosts.is_empty() {
        Err("expected at least one host, found none".to_owned())
    } else {
        Ok(hosts)
    }
}

/// Removes `/* */`, which may span several lines, and everything after `#` or `//`.
fn without_comments(text: &str) -> Vec<String> {
    let mut is_inside = false;
    let without = |line| {
        let mut kept = String::new();
        let mut rest: &str = line;
        loop {
            if is_inside {
                let Some((_, after)) = rest.split_once("*/") else { return kept };
                is_inside = false;
                rest = after;
            }
            let ends = ["#", "//"].iter().filter_map(|start| rest.find(start));
            let end = ends.min().unwrap_or(rest.len());
            let Some(start) = rest[..end].find("/*") else { return kept + &rest[..end] };
            kept.push_str(&rest[..start]);
            kept.push(' ');
            is_inside = true;
            rest = &rest[start + "/*".len()..];
        }
    };
    text.lines().map(without).collect()
}

/// Parses the host in a line; the error is the malformed part.
fn host(line: &str) -> Result<Host, String> {
    // White space may be around `=`.
    let line = line.split('=').map(str::trim).collect::<Vec<_>>().join("=");
    let mut words = line.split_whitespace();
    let mut host = named(words.next().unwrap_or_default())?;
    let mut slots_max = None;
    for word in words {
        let (key, value) = word.split_once('=').ok_or(word)?;
        match key.replace('-', "_").as_str() {
            "slots" | "count" | "cpu" => host.slots = Some(slots(value).ok_or(word)?),
            "slots_max" | "max_slots" | "cpu_max" | "max_cpu" | "count_max" | "max_count" => {
                slots_max = Some(slots(value).ok_or(word)?);
            }
            "username" | "user_name" | "user" => host.user = Some(value.to_owned()),
            "port" => host.port = Some(value.parse().ok().filter(|&port| port > 0).ok_or(word)?),
            "boards" | "sockets" | "sockets_per_board" | "cores" | "cores_per_socket"
            | "cpu_set" | "binding" => {}
            _ => return Err(word.to_owned()),
        }
    }
    host.slots = host.slots.or(slots_max);
    Ok(host)
}

/// Parses the first word of a line, which names a host.
fn named(word: &str) -> Result<Host, String> {
    let (user, rest) = match word.split_once('@') {
        Some((user, rest)) => (Some(user.to_owned()), rest),
        None => (None, word),
    };
    let (name, slots) = match rest.split_once(':') {
        Some((name, count)) if rest.parse::<Ipv6Addr>().is_err() => {
            (name, Some(slots(count).ok_or(word)?))
        }
        _ => (rest, None),
    };
    let is_plain = |text: &str| {
        let may_be = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        text.starts_with(|c| c != '-') && text.chars().all(may_be)
    };
    if !is_plain(name) || user.as_deref().is_some_and(|user| !is_plain(user)) {
        return Err(word.to_owned());
    }
    Ok(Host { name: name.to_owned(), user, port: None, slots })
}

fn slots(text: &str) -> Option<usize> {
    text.parse().ok().filter(|&slots| slots > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `USER@NAME` and slots of each host.
    fn found(text: &str) -> Vec<(String, Option<usize>)> {
        let hosts = parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        hosts.into_iter().map(|host| (host.address(), host.slots)).collect()
    }

    #[test]
    fn both_formats_are_read() {
        let open_mpi = "# workers\njob-worker-0.job.ns.svc slots=8\n\n\
                        job-worker-1.job.ns.svc  slots=8 max_slots=8\n";
        let hydra = "a:4\nb:4 # spare\nc\n";
        let named = |name: &str, slots| (name.to_owned(), slots);
        assert_eq!(
            found(open_mpi),
            [named("job-worker-0.job.ns.svc", Some(8)), named("job-worker-1.job.ns.svc", Some(8))]
        );
        assert_eq!(found(hydra), [named("a", Some(4)), named("b", Some(4)), named("c", None)]);
    }

    #[test]
    fn what_mpirun_takes_is_taken() {
        for (text, address, slots) in [
            ("a slots = 4", "a", Some(4)),
            ("a slots =4 max_slots= 8", "a", Some(4)),
            ("a count=4", "a", Some(4)),
            ("a cpu=4 // of 8", "a", Some(4)),
            ("a max-slots=4", "a", Some(4)),
            ("a slots=4 sockets=2 cores=8", "a", Some(4)),
            ("me@a slots=4", "me@a", Some(4)),
            ("a slots=4 username=me", "me@a", Some(4)),
            ("a:4 user=me binding=none", "me@a", Some(4)),
            ("fd00::7 slots=4", "fd00::7", Some(4)),
            ("10.0.0.7:4", "10.0.0.7", Some(4)),
            ("Node1.Cluster. slots=4", "Node1.Cluster.", Some(4)),
            ("\u{feff}a slots=4\r\n", "a", Some(4)),
            ("a\nA.\na slots=2\n", "a", Some(4)),
        ] {
            assert_eq!(found(text), [(address.to_owned(), slots)], "{text:?}");
        }
        assert_eq!(found("node1.a\nnode1.b\n").len(), 2, "hosts of two domains");
    }

    #[test]
    fn the_port_of_a_host_is_read() {
        for (text, port) in
            [("a slots=4 port=2222", Some(2222)), ("a port = 22", Some(22)), ("a:4", None)]
        {
            assert_eq!(parse(text).unwrap()[0].port, port, "{text}");
        }
    }

    #[test]
    fn comments_are_those_of_mpirun() {
        let text = "/* workers\n of # rack 1 */ a slots=4 /* of 8 */ port=22 # /* spare\n\
                    b:4 // /* c\nd/*e*/slots=4 /**/ /* f\n";
        let named = |name: &str| (name.to_owned(), Some(4));
        assert_eq!(found(text), [named("a"), named("b"), named("d")]);
        let error = parse("/*\n*/\na slots=many").unwrap_err();
        assert!(error.starts_with("line 3: "), "{error}");
    }

    #[test]
    fn malformed_lines_are_named() {
        for (text, expected) in [
            ("a slots=many", "line 1: expected HOST, HOST slots=N or HOST:N, found \"slots=many\""),
            ("a\nb slot=2", "line 2: expected HOST, HOST slots=N or HOST:N, found \"slot=2\""),
            ("a:0", "found \"a:0\""),
            ("a port=0", "found \"port=0\""),
            ("a port=65536", "found \"port=65536\""),
            ("a slots", "found \"slots\""),
            ("-oProxyCommand=x", "found \"-oProxyCommand=x\""),
            ("@a", "found \"@a\""),
            ("^a", "found \"^a\""),
            ("# nothing\n", "expected at least one host"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
