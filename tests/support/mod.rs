//! Runs the binary as a user would, alone or under mpirun, and reads what it left.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test's helper may panic")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest time any one run of a test may take.
const TIMEOUT: Duration = Duration::from_secs(180);

/// What a finished run returned and said.
#[derive(Debug)]
pub struct Finished {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// The same, if it ended with this exit code.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }
}

/// The binary under test.
pub fn yardstick(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_yardstick"));
    command.args(arguments);
    command
}

/// The binary under test on `ranks` ranks of this machine.
pub fn mpirun(ranks: usize, arguments: &[&str]) -> Command {
    let launcher = std::env::var("YARDSTICK_MPIRUN").unwrap_or_else(|_| "mpirun".into());
    let mut command = Command::new(launcher);
    command
        .args(["-np", &ranks.to_string()])
        .arg(env!("CARGO_BIN_EXE_yardstick"))
        .args(arguments)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command
}

/// Runs to the end, or fails the test after [`TIMEOUT`].
#[track_caller]
pub fn finish(command: Command) -> Finished {
    let mut command = command;
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (pid, start) = (child.id(), Instant::now());
    let waiter = std::thread::spawn(move || child.wait_with_output().unwrap());
    while !waiter.is_finished() {
        if start.elapsed() > TIMEOUT {
            Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
            panic!("{command:?} took longer than {TIMEOUT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    finished(waiter.join().unwrap())
}

fn finished(output: Output) -> Finished {
    Finished {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs `yardstick` alone.
#[track_caller]
pub fn run(arguments: &[&str]) -> Finished {
    finish(yardstick(arguments))
}

/// A run's folder and what it holds.
#[derive(Debug)]
pub struct Folder {
    temporary: tempfile::TempDir,
}

impl Folder {
    pub fn new() -> Self {
        Self { temporary: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> PathBuf {
        self.temporary.path().join("run")
    }

    pub fn text(&self) -> String {
        self.path().to_string_lossy().into_owned()
    }

    pub fn record(&self) -> Value {
        record(&self.path())
    }

    /// Bits of rank 0's loss at each step.
    pub fn losses(&self) -> Vec<(u64, u64)> {
        self.steps(0).iter().map(|line| (line.step(), line.loss().to_bits())).collect()
    }

    /// Every line of one rank's steps.
    pub fn steps(&self, rank: usize) -> Vec<Line> {
        let path = self.path().join(format!("steps/r{rank:06}.jsonl"));
        let text = std::fs::read_to_string(&path).unwrap();
        text.lines().map(|line| Line(serde_json::from_str(line).unwrap())).collect()
    }
}

/// One line of `steps/rRRRRRR.jsonl`.
#[derive(Debug)]
pub struct Line(pub Value);

impl Line {
    pub fn step(&self) -> u64 {
        self.0["step"].as_u64().unwrap()
    }

    pub fn loss(&self) -> f64 {
        self.0["loss"].as_f64().unwrap()
    }
}

/// `record.json` of a folder.
pub fn record(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("record.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}
