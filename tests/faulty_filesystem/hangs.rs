//! Storage that does not answer: ranks wait no longer than they may, and name the file.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::faults::{Effect, Fault, Operation};
use crate::mount::Mounted;
use crate::runs::Run;
use support::{Folder, Running, finish, supervise};

/// Longer than ranks wait.
const HANG: Duration = Duration::from_secs(6);

#[track_caller]
fn expect_an_end_that_names(rank: usize, file: &'static str) {
    let mounted = Mounted::new();
    let run = Run::new(&mounted);
    let effect = Effect::Hang(HANG);
    mounted.set(Some(Fault::Named { operation: Operation::Write, name: file, effect }));
    let finished = run.train(&["--set", "checkpoint.deadline=3s"]);
    assert!(mounted.last_hit().is_some());
    mounted.set(None);
    run.await_end(); // until then the process that hangs holds the folder's lock
    let stderr = finished.expect(6).stderr;
    let mut errors = stderr.lines().filter(|line| line.contains("is storage hung?"));
    let is_named = |line: &str| line.contains(file) && line.contains(&format!("rank {rank}"));
    assert!(errors.any(is_named), "{stderr}");
    run.train(&[]).expect(0);
    assert_eq!(run.result(), *crate::runs::undisturbed());
}

#[test]
#[ignore = "needs /dev/fuse and root"]
fn a_hung_write_of_a_shard_ends_within_its_deadline_and_names_rank_and_file() {
    expect_an_end_that_names(1, "r00001-000.safetensors");
}

#[test]
#[ignore = "needs /dev/fuse and root"]
fn a_hung_write_of_a_manifest_ends_within_its_deadline_and_names_rank_and_file() {
    expect_an_end_that_names(0, "MANIFEST");
}

/// A thread that does not wait for storage monitors hosts and takes signals.
#[test]
#[ignore = "needs /dev/fuse and root"]
fn a_launch_does_not_hang_with_the_storage_of_its_record() {
    let mounted = Mounted::new();
    let folder = Folder::inside(mounted.path());
    let out = folder.text();
    let train = ["train", "--out", &out, "--threads", "1"];
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = supervise(&["--grace", "2s", "--patience-percent", "20"], &train);
    command.stdout(Stdio::null()).stderr(File::create(log.path()).unwrap());
    let mut launcher = Running::spawn(command);
    launcher.poll_while(|| !folder.path().join("steps/r000000.jsonl").exists());

    let frozen = mounted.freeze();
    let mut is_asked = false;
    let code = launcher.poll_until_exit(|launcher| {
        if !std::mem::replace(&mut is_asked, true) {
            let launcher = Pid::from_raw(launcher.cast_signed()).unwrap();
            kill_process(launcher, Signal::TERM).unwrap();
        }
    });
    let stderr = std::fs::read_to_string(log.path()).unwrap();
    assert_eq!(code, Some(5), "{stderr}");
    let silence = format!("{out} has not answered for 4 s: is storage hung?; exit code 5");
    assert!(stderr.contains(&silence), "{stderr}");

    let next = finish(supervise(&["--wait", "2s"], &train)).expect(3);
    next.expect_stderr(&[&format!("expected an answer of {out}, found none after 2 s")]);
    drop(frozen);
}
