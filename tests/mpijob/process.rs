//! Processes of pods, as this machine sees them.

use std::fs;
use std::process::Command;

use crate::command::run;
use crate::image::USER;

/// A process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Outside of the pod.
    pub(crate) id: u32,
    /// `NAME=VALUE` of each variable; empty once it has ended.
    environment: Vec<String>,
    /// Program and arguments.
    command: Vec<String>,
    /// Process id in the innermost PID namespace.
    own_id: u32,
    /// `NAME:` and values of each line of `/proc/ID/status`.
    status: String,
}

/// All processes in a network namespace.
pub(crate) fn in_network(namespace: &str) -> Vec<Process> {
    let output = Command::new("ip").args(["netns", "pids", namespace]).output().unwrap();
    let ids = String::from_utf8(output.stdout).unwrap();
    ids.lines().filter_map(|id| Process::read(id.trim().parse().unwrap())).collect()
}

/// Sends a signal, as `TERM`.
#[track_caller]
pub(crate) fn signal(name: &str, process: u32) {
    run("kill", &["-s", name, &process.to_string()]);
}

impl Process {
    /// Unless it has ended.
    fn read(id: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        let own_id = field(&status, "NSpid")?.split_whitespace().last()?.parse().ok()?;
        let words = |file: &str| -> Option<Vec<String>> {
            let content = fs::read(format!("/proc/{id}/{file}")).ok()?;
            let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
            Some(content.split(|byte| *byte == 0).map(text).collect())
        };
        let [environment, command] = [words("environ")?, words("cmdline")?];
        Some(Self { id, environment, command, own_id, status })
    }

    /// Returns whether it runs this program with this argument, possibly among more.
    pub(crate) fn runs(&self, program: &str, argument: &str) -> bool {
        let is_program = self.command[0].rsplit('/').next() == Some(program);
        is_program && self.command.iter().any(|word| word == argument)
    }

    /// Returns whether a launcher started it as a rank.
    pub(crate) fn is_rank(&self) -> bool {
        self.variable("PMIX_RANK").is_some()
    }

    /// Returns whether it is PID 1 of a container.
    pub(crate) fn is_first_of_container(&self) -> bool {
        self.own_id == 1
    }

    /// Returns whether it is the image's user, and has no capability and no way to get one.
    pub(crate) fn is_restricted(&self) -> bool {
        let is = |name, value: &str| field(&self.status, name).is_some_and(|it| it == value);
        let ids = [USER; 4].map(|id| id.to_string()).join("\t");
        let is_user = is("Uid", &ids) && is("Gid", &ids) && is("Groups", "");
        let none = format!("{:016x}", 0);
        is_user && is("NoNewPrivs", "1") && ["CapPrm", "CapBnd"].iter().all(|set| is(set, &none))
    }

    /// Returns an environment variable that it was started with.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let mut values = self.environment.iter().filter_map(|variable| variable.split_once('='));
        values.find(|variable| variable.0 == name).map(|variable| variable.1)
    }
}

/// A line of a process's status, without its name.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    lines.into_iter().find(|line| line.0 == name).map(|line| line.1.trim())
}
