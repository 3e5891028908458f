//! Commands: starting them, waiting for them with a timeout, and their output.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time that a command of a test may take.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Exit code and output of a finished command.
#[derive(Debug)]
pub struct Finished {
    pub code: i32,
    pub stdout: String,
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

    /// For [`mpirun_test`]: fails unless the test passed on every rank. Lines of several ranks may
    /// be mixed, but all run the same test, so it is sufficient to find the result of one.
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

/// One test of this test binary, by its full name, on `ranks` ranks of this machine.
pub fn mpirun_test(ranks: usize, test: &str) -> Command {
    let mut command = launch(ranks, std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// Lets each operation of an emulated device's stream start up to so much later than it could, or
/// what the environment says (`make soak`).
pub fn delay_streams(command: &mut Command, delay_us: &str) {
    const VARIABLE: &str = "EMULATED_CUDA_DELAY_US";
    if std::env::var_os(VARIABLE).is_none() {
        command.env(VARIABLE, delay_us);
    }
}

thread_local! {
    /// For the files of the launchers that a test starts. All launchers of a user share a folder in
    /// the temporary folder: the last to end removes it, even while another one starts.
    static LAUNCHER_FILES: tempfile::TempDir = tempfile::tempdir().unwrap();
}

/// Any program on `ranks` ranks of this machine.
pub fn launch(ranks: usize, program: impl AsRef<OsStr>) -> Command {
    let launcher = std::env::var("YARDSTICK_MPIRUN").unwrap_or_else(|_| "mpirun".into());
    let mut command = Command::new(launcher);
    command.args(["-np", &ranks.to_string()]).arg(program);
    set_launcher_environment(&mut command);
    command
}

/// `yardstick launch` of two ranks, unless `flags` say otherwise, with the `mpirun` of the tests.
pub fn supervise(flags: &[&str], launched: &[&str]) -> Command {
    let mpirun = std::env::var("YARDSTICK_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned());
    let mut command = yardstick(&["launch", "--mpirun", &mpirun]);
    if !flags.contains(&"--ranks-per-node") {
        command.args(["--ranks-per-node", "2"]);
    }
    command.args(flags).arg("--").args(launched);
    set_launcher_environment(&mut command);
    command
}

/// What a launcher needs to start more ranks than cores, as root, with files of its own.
pub fn set_launcher_environment(command: &mut Command) {
    command
        .env("TMPDIR", LAUNCHER_FILES.with(|folder| folder.path().to_path_buf()))
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1");
}

/// A running command. Dropping it kills the command and its children, so that a test that fails
/// leaves no process behind.
#[derive(Debug)]
pub struct Running {
    child: Child,
    start: Instant,
}

impl Running {
    /// Starts a command in its own process group, without input and output.
    #[track_caller]
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self::spawn(command)
    }

    /// Starts a command in its own process group, with the input and output that it specifies.
    #[track_caller]
    pub fn spawn(mut command: Command) -> Self {
        let child = command.process_group(0).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, start: Instant::now() }
    }

    /// Waits for its exit code; fails the test after [`TIMEOUT`].
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
        loop {
            poll(self.child.id());
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(self.start.elapsed() < TIMEOUT, "still running after {TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
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

/// Runs a command to its end; fails the test after [`TIMEOUT`].
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
    drop(running); // kills children that still hold the pipes
    Finished { code, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// Runs `yardstick` without a launcher.
#[track_caller]
pub fn run(arguments: &[&str]) -> Finished {
    finish(yardstick(arguments))
}

/// The result of [`on_both_ranks`].
#[derive(Debug)]
pub struct BothRanks {
    pub finished: Finished,
    /// Exit codes of both ranks, one per line.
    pub codes: String,
}

/// Runs `yardstick` on two ranks. Because a launcher kills all ranks when one has failed, each
/// waits for the exit code of the other.
#[track_caller]
pub fn on_both_ranks(arguments: &[&str], variables: &[(&str, &OsStr)]) -> BothRanks {
    let folder = tempfile::tempdir().unwrap();
    let codes = folder.path().join("codes");
    let script = r#"
        codes=$1; shift; "$@"; echo $? >>"$codes"
        for _ in $(seq 300); do [ "$(wc -l <"$codes")" = 2 ] && break; sleep 0.1; done"#;
    let mut command = launch(2, "sh");
    command.args(["-c", script, "sh"]).arg(&codes);
    command.arg(env!("CARGO_BIN_EXE_yardstick")).args(arguments);
    command.envs(variables.iter().copied());
    let finished = finish(command);
    BothRanks { finished, codes: std::fs::read_to_string(codes).unwrap_or_default() }
}

/// Resident memory of some processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentBytes {
    pub total: u64,
    /// The part of `total` that is pages of the program's file.
    pub program: u64,
}

/// The proportional set sizes of some processes, which count a shared page once; `None` unless all
/// of them are running.
pub fn resident_bytes(processes: &[u32]) -> Option<ResidentBytes> {
    let read = |process, file| std::fs::read_to_string(format!("/proc/{process}/{file}")).ok();
    let path = Path::new(env!("CARGO_BIN_EXE_yardstick")).canonicalize().unwrap();
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
    // The share of a process that has ended meanwhile is counted for the others.
    let is_running = |process| read(process, "status").is_some_and(|text| text.contains("VmRSS:"));
    (resident.program > 0 && processes.iter().all(is_running)).then_some(resident)
}
