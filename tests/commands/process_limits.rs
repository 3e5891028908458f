//! Limits of a process: threads, open files, sizes of files, a home, a folder to write to. A limit
//! that is too low gives one sentence, with the limit and its value.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use support::{Finished, finish, launcher};

/// Nobody's: it has no entry in the file of users, and no processes but those of a test.
const UID: u32 = 4_242_424;

/// Folder with a copy of the program for another user: only root may have access to the original.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let program = folder.path().join("yardstick");
        // Not by this process: what another test starts meanwhile would have the copy open for
        // writing for a moment, and it could not be run.
        let mut copy = Command::new("cp");
        let copied = copy.arg(env!("CARGO_BIN_EXE_yardstick")).arg(program).status();
        assert!(copied.unwrap().success());
        fs::write(folder.path().join("text.txt"), "hello").unwrap();
        fs::write(folder.path().join("tokens.bin"), [1, 0, 2, 0]).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a command in the folder with this limit of `prlimit`, as a user that it holds for.
    fn command(&self, limit: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("prlimit");
        command.arg(limit).arg(self.path("yardstick")).args(arguments);
        launcher::set_environment(&mut command);
        let folder = self.folder.path();
        command.current_dir(folder).env("HOME", "/").env("TMPDIR", folder);
        if rustix::process::geteuid().is_root() {
            command.uid(UID);
        }
        command
    }

    fn run(&self, limit: &str, arguments: &[&str]) -> Finished {
        finish(self.command(limit, arguments))
    }
}

/// Expects one sentence, and nothing of a panic.
#[track_caller]
fn expect_sentence(finished: Finished, code: i32, parts: &[&str]) {
    let finished = finished.expect(code).expect_stderr(parts);
    let errors = finished.stderr.lines().filter(|line| line.starts_with("error: ")).count();
    assert_eq!(errors, 1, "{}", finished.stderr);
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
}

const TRAIN: [&str; 5] = ["train", "--steps", "2", "--set", "telemetry.matmul_probe=0s"];

#[test]
fn a_thread_that_cannot_be_started_is_named_with_the_limit() {
    let place = Place::new();
    let tokenize = ["data", "tokenize", "text.txt", "--out", "out.bin"];
    let bench = ["ckpt", "bench", "--path", "bench", "--bytes", "1MiB"];
    let inspect = ["data", "inspect", "tokens.bin"];
    let commands: [&[&str]; 6] =
        [&["plan"], &["workloads"], &tokenize, &inspect, &bench, &["comm"]];
    for command in commands {
        let finished = place.run("--nproc=1", command);
        expect_sentence(finished, 3, &["cannot start a thread for ", "(ulimit -u) is 1"]);
    }
    for threads in 1..9 {
        let out = format!("run-{threads}");
        let limit = format!("--nproc={threads}");
        let finished = place.run(&limit, &[&TRAIN[..], &["--out", &out]].concat());
        if finished.code == 0 {
            return; // enough
        }
        let expected = format!("(ulimit -u) is {threads}");
        expect_sentence(finished, 3, &["cannot start a thread for ", &expected]);
    }
}

#[test]
fn limits_of_files_are_errors_and_no_signals() {
    let place = Place::new();
    let train = |limit: &str, out: &str| place.run(limit, &[&TRAIN[..], &["--out", out]].concat());
    let expected = ["a/", "File too large", "(ulimit -f) is 1000"];
    expect_sentence(train("--fsize=1000", "a"), 3, &expected);
    let few = train("--nofile=6:6", "b");
    expect_sentence(few, 3, &["Too many open files", "(ulimit -n) is 6"]);
    train("--nofile=6:1024", "c").expect(0);
    let little = train("--as=100000000", "d");
    expect_sentence(little, 3, &["bytes of memory", "(ulimit -v) is 100000000"]);
}

/// Expects an object of JSON, although the line is written without memory.
#[test]
fn a_line_about_memory_is_json_where_all_lines_are() {
    let place = Place::new();
    let arguments = [&TRAIN[..], &["--out", "a", "--log-format", "json"]].concat();
    let finished = place.run("--as=100000000", &arguments).expect(3);
    // Warnings about the machine may precede it.
    let lines = finished.stderr.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<serde_json::Value> = lines.collect();
    let line = &lines[lines.len() - 1];
    let text = line["text"].as_str().unwrap();
    assert!(text.ends_with("; the limit of address space in bytes (ulimit -v) is 100000000"));
    assert_eq!((&line["event"], &line["exit_code"]), (&"error".into(), &3.into()), "{line}");
    let time = line["timestamp"].as_str().unwrap();
    let time = chrono::DateTime::parse_from_rfc3339(time).unwrap();
    assert!((chrono::Utc::now() - time.to_utc()).abs() < chrono::TimeDelta::minutes(1), "{line}");
    assert!(line["host"].as_str().is_some_and(|host| !host.is_empty()), "{line}");
    assert!(line["rank"] == 0 || line["rank"].is_null(), "{line}");
    for name in ["caused_by_rank", "step"] {
        assert_eq!(line.get(name), Some(&serde_json::Value::Null), "{name}");
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let place = Place::new();
    fs::create_dir(place.path("runs")).unwrap();
    fs::set_permissions(place.path("runs"), Permissions::from_mode(0o555)).unwrap();
    let named = [&TRAIN[..], &["--out", "runs/mine"]].concat();
    let bench = ["bench", "--repeats", "1", "--steps", "2"];
    for (arguments, folder) in
        [(&TRAIN[..], "runs/smoke-20"), (&named, "runs/mine"), (&bench, "runs/bench-smoke-20")]
    {
        let refused = place.run("--nofile=1024", arguments);
        expect_sentence(
            refused,
            3,
            &[folder, "Permission denied", "mode 0555, this process is uid "],
        );
    }
    fs::set_permissions(place.path("runs"), Permissions::from_mode(0o777)).unwrap();
    for _ in 0..2 {
        place.run("--nofile=1024", &TRAIN).expect(0);
    }
    let runs = fs::read_dir(place.path("runs")).unwrap();
    let names: Vec<_> = runs.map(|run| run.unwrap().file_name().into_string().unwrap()).collect();
    let is_dated = |name: &String| {
        let time = name.strip_prefix("smoke-").and_then(|rest| rest.get(..20));
        time.is_some_and(|time| {
            chrono::NaiveDateTime::parse_from_str(time, "%Y-%m-%dT%H-%M-%SZ").is_ok()
        })
    };
    assert!(names.len() == 2 && names.iter().all(is_dated), "{names:?}");
}

/// Open MPI 4 crashes without a home.
#[cfg(feature = "mpi")]
#[test]
fn a_launch_needs_no_home() {
    let place = Place::new();
    let out = support::text(&place.path("run"));
    let launched = [&TRAIN[..], &["--out", &out]].concat();
    let mpirun = std::env::var("YARDSTICK_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned());
    let launch = ["launch", "--mpirun", &mpirun, "--ranks-per-node", "1", "--"];
    let mut command = place.command("--nofile=1024", &[&launch, &launched[..]].concat());
    command.env_remove("HOME").env_remove("USER").env_remove("LOGNAME");
    finish(command).expect(0);
    assert!(place.path("run/record.json").exists());
}
