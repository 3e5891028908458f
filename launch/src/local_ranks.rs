//! The ranks on this host: processes of this program that a launcher started.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Variables that only ranks have.
const RANK_VARIABLES: [&str; 4] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"];

/// Variable that names the launch of a rank.
pub(crate) const LAUNCH_ID: &str = "YARDSTICK_LAUNCH_ID";

/// Daemons with which launchers start ranks, and which report how they ended.
const DAEMONS: [&str; 3] = ["orted", "prted", "hydra_pmi_proxy"];

/// Selection of ranks of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalRanks {
    /// Launch of the ranks; `None` for all launches.
    pub(crate) launch: Option<String>,
}

/// A running rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalRank {
    pub(crate) pid: Pid,
    /// Number in the world, by its launcher.
    pub(crate) rank: usize,
}

impl LocalRank {
    /// Sends a signal, unless the rank has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process(self.pid, signal);
    }

    /// Returns whether the process still exists.
    pub(crate) fn is_running(&self) -> bool {
        test_kill_process(self.pid).is_ok()
    }
}

impl LocalRanks {
    /// Lists the selected ranks that run now.
    pub(crate) fn running(&self) -> Vec<LocalRank> {
        let own = fs::read_link("/proc/self/exe").ok();
        let is_own = |pid: &Pid| fs::read_link(format!("{}/exe", folder(*pid))).ok() == own;
        processes().into_iter().filter(is_own).filter_map(|pid| self.rank(pid)).collect()
    }

    /// Sends a signal to all ranks that run now, and returns their number.
    pub(crate) fn signal(&self, signal: Signal) -> usize {
        let running = self.running();
        running.iter().for_each(|rank| rank.signal(signal));
        running.len()
    }

    /// Returns the selected rank that a process is, if any.
    fn rank(&self, pid: Pid) -> Option<LocalRank> {
        let environment = fs::read(format!("{}/environ", folder(pid))).unwrap_or_default();
        let value = |name: &str| {
            let of_name = |entry: &&[u8]| {
                entry.starts_with(name.as_bytes()) && entry.get(name.len()) == Some(&b'=')
            };
            let entry = environment.split(|byte| *byte == 0).find(of_name)?;
            std::str::from_utf8(&entry[name.len() + 1..]).ok()
        };
        if self.launch.is_some() && value(LAUNCH_ID) != self.launch.as_deref() {
            return None;
        }
        let rank = RANK_VARIABLES.iter().find_map(|name| value(name))?;
        Some(LocalRank { pid, rank: rank.parse().ok()? })
    }
}

/// Returns whether a daemon of a launcher runs on this host.
pub(crate) fn has_launcher_daemon() -> bool {
    let name = |pid| fs::read_to_string(format!("{}/comm", folder(pid))).unwrap_or_default();
    processes().into_iter().any(|pid| DAEMONS.contains(&name(pid).trim()))
}

/// Lists this program's processes whose arguments begin with these.
pub(crate) fn processes_with(arguments: &[&str]) -> Vec<Pid> {
    let own = fs::read_link("/proc/self/exe").ok();
    let is_meant = |pid: &Pid| {
        let line = fs::read(format!("{}/cmdline", folder(*pid))).unwrap_or_default();
        let found: Vec<_> = line.split(|byte| *byte == 0).skip(1).take(arguments.len()).collect();
        fs::read_link(format!("{}/exe", folder(*pid))).ok() == own
            && found.iter().eq(arguments
                .iter()
                .map(|argument| argument.as_bytes())
                .collect::<Vec<_>>()
                .iter())
    };
    processes().into_iter().filter(is_meant).collect()
}

fn folder(pid: Pid) -> String {
    format!("/proc/{}", pid.as_raw_nonzero())
}

fn processes() -> Vec<Pid> {
    let entries = fs::read_dir(Path::new("/proc")).into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.filter_map(number).filter_map(Pid::from_raw).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Variable that makes this test a process that waits for the end of its input.
    const WAIT: &str = "YARDSTICK_TEST_WAIT";

    /// Starts a process of this program that waits for its input to end.
    fn waiting(variables: &[(&str, &str)]) -> Child {
        let mut command = Command::new("/proc/self/exe");
        let name = "local_ranks::tests::ranks_of_a_launch_are_found_and_signalled_and_no_others";
        command.args(["--exact", name]).env_clear().env(WAIT, "");
        command.envs(variables.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn ranks_of_a_launch_are_found_and_signalled_and_no_others() {
        if std::env::var_os(WAIT).is_some() {
            std::io::read_to_string(std::io::stdin()).unwrap();
            return;
        }
        let launch = format!("test-{}", std::process::id());
        let rank = ("OMPI_COMM_WORLD_RANK", "7");
        let mut own = waiting(&[rank, (LAUNCH_ID, &launch)]);
        let mut of_another = waiting(&[rank, (LAUNCH_ID, "another")]);
        let mut no_rank = waiting(&[(LAUNCH_ID, &launch)]);
        let ranks = LocalRanks { launch: Some(launch) };
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while ranks.running().is_empty() && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(5)); // until it has executed
        }
        let expected = LocalRank { pid: Pid::from_child(&own), rank: 7 };
        assert_eq!(ranks.running(), [expected]);
        assert!(expected.is_running());
        assert_eq!(ranks.signal(Signal::KILL), 1);
        assert!(!own.wait().unwrap().success());
        assert!(!expected.is_running());
        assert_eq!(ranks.running(), []);
        for other in [&mut of_another, &mut no_rank] {
            assert_eq!(other.try_wait().unwrap(), None, "not signalled");
            other.kill().unwrap();
            other.wait().unwrap();
        }
    }
}
