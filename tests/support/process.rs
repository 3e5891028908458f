//! Commands: start, wait with a timeout, and output.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::launcher;
use crate::slots::Slots;

/// Longest time that a command of a test may take: far above what any takes, also where a busy
/// machine stalls its storage for minutes.
const TIMEOUT: Duration = Duration::from_secs(400);

/// Exit code and output of a finished command.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; -1 for one that a signal has ended.
    pub code: i32,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Finished {
    /// Fails unless the exit code is this.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Fails unless stderr contains all of these.
    #[track_caller]
    pub fn expect_stderr(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in {}", self.stderr);
        }
        self
    }

    /// Fails unless stdout contains all of these.
    #[track_caller]
    pub fn expect_stdout(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.stdout.contains(part), "no {part:?} in {}", self.stdout);
        }
        self
    }

    /// Fails unless the test of [`mpirun_test`] passed on every rank. Lines of several ranks may be
    /// mixed, but all run the same test, so it is sufficient to find the result of one.
    #[track_caller]
    pub fn expect_test_passed(self) {
        let finished = self.expect(0);
        assert!(finished.stdout.contains(". 1 passed"), "{}", finished.stdout);
    }
}

/// The binary under test. Cargo puts those of tests into a folder beside it. It is up to date only
/// for tests of the package that has the binary.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().join("yardstick")
}

/// Flags of a test that needs the matmul rate, which others do not measure: that takes a quarter of
/// a short run.
pub const PROBE: [&str; 2] = ["--set", "telemetry.matmul_probe=250ms"];

const NO_PROBE: [&str; 2] = ["--set", "telemetry.matmul_probe=0s"];

/// Adds arguments of the binary under test.
fn add_arguments(command: &mut Command, arguments: &[&str]) {
    match arguments {
        ["train", flags @ ..] => command.arg("train").args(NO_PROBE).args(flags),
        _ => command.args(arguments),
    };
}

/// The binary under test, with arguments.
pub fn yardstick(arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    add_arguments(&mut command, arguments);
    command
}

/// The binary under test on `ranks` ranks of this machine.
pub fn mpirun(ranks: usize, arguments: &[&str]) -> Command {
    let mut command = launch(ranks, program());
    add_arguments(&mut command, arguments);
    command
}

/// Returns a command for one test of this binary, by its full name, on `ranks` ranks.
pub fn mpirun_test(ranks: usize, test: &str) -> Command {
    let mut command = launch(ranks, std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// Delays each operation of an emulated device's stream by a time up to this, or up to that of the
/// environment (`make soak`).
pub fn delay_streams(command: &mut Command, delay_us: &str) {
    const VARIABLE: &str = "EMULATED_CUDA_DELAY_US";
    if std::env::var_os(VARIABLE).is_none() {
        command.env(VARIABLE, delay_us);
    }
}

/// Returns a command for any program on `ranks` ranks of this machine.
pub fn launch(ranks: usize, program: impl AsRef<OsStr>) -> Command {
    let mut command = launcher::command();
    command.args(["-np", &ranks.to_string()]).arg(program);
    command
}

/// Returns `yardstick launch` of two ranks, unless `flags` say otherwise, with the `mpirun` of the
/// tests.
pub fn supervise(flags: &[&str], launched: &[&str]) -> Command {
    let mut command = yardstick(&["launch", "--mpirun", &launcher::program()]);
    if !flags.contains(&"--ranks-per-node") {
        command.args(["--ranks-per-node", "2"]);
    }
    command.args(flags).arg("--");
    add_arguments(&mut command, launched);
    launcher::set_environment(&mut command);
    command
}

/// Running command. Dropping it kills the command and its children, so that a test that fails
/// leaves no process behind.
#[derive(Debug)]
pub struct Running {
    child: Child,
    start: Instant,
    slots: Slots,
}

impl Running {
    /// Starts a command in its own process group, without input and output.
    #[track_caller]
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self::spawn(command)
    }

    /// Starts a command in its own process group, with the input and output that it specifies, as
    /// soon as there are slots for its ranks.
    #[track_caller]
    pub fn spawn(command: Command) -> Self {
        let slots = Slots::acquire(rank_count(&command));
        Self::spawn_with(slots, command)
    }

    #[track_caller]
    fn spawn_with(slots: Slots, mut command: Command) -> Self {
        let child = command.process_group(0).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, start: Instant::now(), slots }
    }

    /// Gives its slots to other commands: it waits from now on.
    pub fn release_slots(&mut self) {
        self.slots = Slots::default();
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for its exit code; fails the test after `TIMEOUT`.
    #[track_caller]
    pub fn wait(&mut self) -> Option<i32> {
        self.poll_until_exit(|_| {})
    }

    /// Calls `poll` until it returns false; fails the test if the command ends before that.
    #[track_caller]
    pub fn poll_while(&mut self, mut poll: impl FnMut() -> bool) {
        while poll() {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && self.start.elapsed() < TIMEOUT, "{ended:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its exit code, and calls `poll` with its process id every few milliseconds.
    #[track_caller]
    pub fn poll_until_exit(&mut self, mut poll: impl FnMut(u32)) -> Option<i32> {
        let exit = self.poll_until_timeout(&mut poll);
        exit.unwrap_or_else(|| panic!("still running after {TIMEOUT:?}"))
    }

    /// Exit code; `None` after `TIMEOUT`.
    #[track_caller]
    fn poll_until_timeout(&mut self, poll: &mut dyn FnMut(u32)) -> Option<Option<i32>> {
        while self.start.elapsed() < TIMEOUT {
            poll(self.child.id());
            if let Some(status) = self.child.try_wait().unwrap() {
                self.release_slots();
                return Some(status.code());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ranks that a launcher put into other process groups die with the launcher.
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}

/// Number of ranks of a command that trains or runs under `mpirun`; 0 for others, which compute
/// little.
fn rank_count(command: &Command) -> usize {
    let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap_or("")).collect();
    let counts = words.windows(2).filter(|pair| ["-np", "--ranks-per-node"].contains(&pair[0]));
    let ranks = counts.map(|pair| pair[1].parse::<usize>().unwrap_or(1)).sum::<usize>();
    let trains = words.first().is_some_and(|word| ["train", "bench"].contains(word));
    ranks.max(usize::from(trains))
}

/// Runs a command to its end; fails the test after `TIMEOUT`, with what it has written so far.
#[track_caller]
pub fn finish(command: Command) -> Finished {
    let slots = Slots::acquire(rank_count(&command));
    finish_with(slots, command)
}

/// The same for a command that mostly waits: it takes no slots.
#[track_caller]
pub fn finish_waiting(command: Command) -> Finished {
    finish_with(Slots::default(), command)
}

#[track_caller]
fn finish_with(slots: Slots, mut command: Command) -> Finished {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::spawn_with(slots, command);
    let collect = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.unwrap().read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = collect(running.child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = collect(running.child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let exit = running.poll_until_timeout(&mut |_| {});
    drop(running); // kills children that still hold the pipes
    let [stdout, stderr] = [stdout, stderr].map(|pipe| pipe.join().unwrap());
    let Some(code) = exit else { panic!("still running after {TIMEOUT:?}:\n{stdout}\n{stderr}") };
    Finished { code: code.unwrap_or(-1), stdout, stderr }
}

/// Runs `yardstick` without a launcher.
#[track_caller]
pub fn run(arguments: &[&str]) -> Finished {
    finish(yardstick(arguments))
}

/// The result of [`on_each_rank`].
#[derive(Debug)]
pub struct EachRank {
    /// Exit code and output of the launcher.
    pub finished: Finished,
    /// Exit codes of the ranks, one per line, in the order of their ends.
    pub codes: String,
}

/// Runs `yardstick` on some ranks. Because a launcher kills all ranks when one has failed, each
/// waits for the exit codes of the others.
#[track_caller]
pub fn on_each_rank(ranks: usize, arguments: &[&str], variables: &[(&str, &OsStr)]) -> EachRank {
    let folder = tempfile::tempdir().unwrap();
    let codes = folder.path().join("codes");
    let script = r#"
        ranks=$1; codes=$2; shift 2; "$@"; echo $? >>"$codes"
        for _ in $(seq 600); do [ "$(wc -l <"$codes")" = "$ranks" ] && break; sleep 0.1; done"#;
    let mut command = launch(ranks, "sh");
    command.args(["-c", script, "sh", &ranks.to_string()]).arg(&codes);
    command.arg(program());
    add_arguments(&mut command, arguments);
    command.envs(variables.iter().copied());
    let finished = finish(command);
    EachRank { finished, codes: std::fs::read_to_string(codes).unwrap_or_default() }
}

/// A library to preload (`LD_PRELOAD`), compiled from C.
pub fn library_of(text: &str, folder: &Path) -> PathBuf {
    let source = folder.join("preloaded.c");
    let library = folder.join("preloaded.so");
    std::fs::write(&source, text).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    assert!(compiler.status().unwrap().success());
    library
}

/// Resident memory of some processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentBytes {
    /// Bytes of all of them.
    pub total: u64,
    /// The part of `total` that is pages of the program's file.
    pub program: u64,
}

/// The proportional set sizes of some processes, which count a shared page once; `None` unless all
/// of them are running.
pub fn resident_bytes(processes: &[u32]) -> Option<ResidentBytes> {
    let read = |process, file| std::fs::read_to_string(format!("/proc/{process}/{file}")).ok();
    let path = program().canonicalize().unwrap();
    let path = path.to_string_lossy();
    let mut resident = ResidentBytes { total: 0, program: 0 };
    for process in processes {
        let mut is_program = false;
        for line in read(process, "smaps")?.lines() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["Pss:", size, "kB"] => {
                    let bytes = size.parse::<u64>().ok()? << 10;
                    resident.total += bytes;
                    resident.program += if is_program { bytes } else { 0 };
                }
                [key, ..] if key.ends_with(':') => {}
                _ => is_program = line.ends_with(&*path),
            }
        }
    }
    // The share of a process that has ended meanwhile is counted for the remaining ones.
    let is_running = |process| read(process, "status").is_some_and(|text| text.contains("VmRSS:"));
    (resident.program > 0 && processes.iter().all(is_running)).then_some(resident)
}
