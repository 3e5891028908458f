//! Runs the binary as a user would, alone or under mpirun, and reads what it left.

#![allow(dead_code, unused_imports, unreachable_pub, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test's helper may panic")]

mod kinds;

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub use kinds::{KINDS, Kind, SEVERAL_BUCKETS};
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

    /// Of `mpirun_test`: the test passed on every rank. All ranks ask for the same test, so one
    /// rank's word that there is one speaks for all, whose lines may be torn by each other's.
    #[track_caller]
    pub fn expect_test_passed(self) {
        let finished = self.expect(0);
        assert!(finished.stdout.contains(". 1 passed"), "{}", finished.stdout);
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
    let mut command = launch(ranks, env!("CARGO_BIN_EXE_yardstick"));
    command.args(arguments);
    command
}

/// One test of this test binary, by its whole name, on `ranks` ranks of this machine.
pub fn mpirun_test(ranks: usize, test: &str) -> Command {
    let mut command = launch(ranks, std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// Any program on `ranks` ranks of this machine.
pub fn launch(ranks: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let launcher = std::env::var("YARDSTICK_MPIRUN").unwrap_or_else(|_| "mpirun".into());
    let mut command = Command::new(launcher);
    command
        .args(["-np", &ranks.to_string()])
        .arg(program)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command
}

/// A command that is under way. It and all that it started are killed when this is dropped, so
/// that a test which fails leaves nothing behind.
#[derive(Debug)]
pub struct Running {
    child: Child,
    start: Instant,
}

impl Running {
    /// Starts it in a process group of its own, with nobody listening to what it says.
    #[track_caller]
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self::spawn(command)
    }

    /// The same, with what it reads and writes as the command says.
    #[track_caller]
    pub fn spawn(mut command: Command) -> Self {
        let child = command.process_group(0).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, start: Instant::now() }
    }

    /// Its exit code; fails the test after [`TIMEOUT`].
    #[track_caller]
    pub fn wait(&mut self) -> Option<i32> {
        self.watch(|_| {})
    }

    /// Calls `look` until it has seen enough; the command is to go on all the time.
    #[track_caller]
    pub fn watch_while(&mut self, mut look: impl FnMut() -> bool) {
        while look() {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && self.start.elapsed() < TIMEOUT, "{ended:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its exit code, calling `look` with its process id every few milliseconds until it ends.
    #[track_caller]
    pub fn watch(&mut self, mut look: impl FnMut(u32)) -> Option<i32> {
        loop {
            look(self.child.id());
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(self.start.elapsed() < TIMEOUT, "not over after {TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The memory of some processes together while all of them live: the kernel's proportional sets, in
/// which a page that several of them have is counted once. Second, the part of it that is pages of
/// the program's own file.
pub fn resident_bytes(processes: &[u32]) -> Option<[u64; 2]> {
    let read = |process, file| std::fs::read_to_string(format!("/proc/{process}/{file}")).ok();
    let path = Path::new(env!("CARGO_BIN_EXE_yardstick")).canonicalize().unwrap();
    let path = path.to_string_lossy();
    let [mut all, mut program] = [0, 0];
    for process in processes {
        let mut is_program = false;
        for line in read(process, "smaps")?.lines() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["Pss:", size, "kB"] => {
                    let bytes = size.parse::<u64>().ok()? << 10;
                    all += bytes;
                    program += if is_program { bytes } else { 0 };
                }
                [key, ..] if key.ends_with(':') => {}
                _ => is_program = line.ends_with(&*path),
            }
        }
    }
    // One that has ended meanwhile leaves its share of common pages to the others.
    let lives = |process| read(process, "status").is_some_and(|text| text.contains("VmRSS:"));
    (program > 0 && processes.iter().all(lives)).then_some([all, program])
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ranks that a launcher put into groups of their own die with the launcher.
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}

/// Runs to the end, or fails the test after [`TIMEOUT`].
#[track_caller]
pub fn finish(mut command: Command) -> Finished {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::spawn(command);
    let collect = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.unwrap().read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = collect(running.child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = collect(running.child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let code = running.wait().unwrap_or(-1);
    drop(running); // and with it whoever still holds the pipes
    Finished { code, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
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
