//! Process limits that cause errors of the operating system.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns the limit behind an error, with its value, as in `the limit of open files (ulimit -n) is
/// 1024`; `None` if unknown.
pub fn behind(error: &io::Error) -> Option<String> {
    match Errno::from_io_error(error)? {
        Errno::FBIG => text("the size of files in bytes (ulimit -f)", Resource::Fsize),
        Errno::MFILE => text("open files (ulimit -n)", Resource::Nofile),
        Errno::NOMEM => address_space(),
        Errno::AGAIN => Some(of_threads().join("; ")).filter(|limits| !limits.is_empty()),
        _ => None,
    }
}

/// Formats an error with the limit behind it, if one is known.
pub fn explained(error: &io::Error) -> String {
    let limit = behind(error).map(|limit| format!("; {limit}"));
    format!("{error}{}", limit.unwrap_or_default())
}

/// Raises the limit of open files to its maximum, but no higher than child programs tolerate: some
/// close every descriptor up to the limit.
pub fn raise_open_files() {
    const WANTED: u64 = 1 << 16;
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(WANTED, |maximum| maximum.min(WANTED));
    if limit.current.is_some_and(|current| current < wanted) {
        // On failure the limit stays unchanged.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
    }
}

/// Error text of a failed allocation of this size, with the limit behind it.
pub fn out_of_memory(bytes: usize) -> String {
    let limit = address_space().map(|limit| format!("; {limit}"));
    format!("{NO_MEMORY}{bytes} bytes of memory{}", limit.unwrap_or_default())
}

/// Prefix of a panic message about memory.
const NO_MEMORY: &str = "cannot allocate ";

/// Explains a panic that has a limit behind it: no memory for a buffer, or a library that could not
/// start a thread. `None` for any other panic.
pub fn behind_panic(text: &str) -> Option<String> {
    if text.starts_with(NO_MEMORY) {
        return Some(text.to_owned());
    }
    let is_refused = text.contains("os error 11") || text.contains("code: 11,");
    let explain = || {
        let limits = of_threads().join("; ");
        format!("a library cannot start a thread: {text}; {limits}")
    };
    (is_refused && text.contains("thread")).then(explain)
}

/// Limits that can keep a process from starting another thread.
pub fn of_threads() -> Vec<String> {
    let user = text("processes and threads of the user (ulimit -u)", Resource::Nproc);
    let group = pids_max().map(|pids| format!("that of its control group (pids.max) is {pids}"));
    [user, address_space(), group].into_iter().flatten().collect()
}

fn address_space() -> Option<String> {
    text("address space in bytes (ulimit -v)", Resource::As)
}

fn text(what: &str, resource: Resource) -> Option<String> {
    Some(format!("the limit of {what} is {}", getrlimit(resource).current?))
}

/// Smallest `pids.max` that applies to this process; every ancestor of its control group limits it
/// too. In a container the path may not exist below the mount, whose root is then the container's
/// own group.
fn pids_max() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let folders = paths.flat_map(|path| Path::new(path.trim_start_matches('/')).ancestors());
    let files = folders.flat_map(|folder| {
        ["/sys/fs/cgroup", "/sys/fs/cgroup/pids"]
            .map(|m| Path::new(m).join(folder).join("pids.max"))
    });
    files.filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok()).min()
}
