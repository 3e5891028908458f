//! `yardstick launch` on this machine: what it calls a success, and what it exits with. Several
//! hosts are in tests/mpijob.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use support::{Finished, Folder, finish, supervise, text};

fn train(folder: &Folder, flags: &[&str], train: &[&str]) -> Command {
    let folder = folder.text();
    supervise(flags, &[&["train", "--out", &folder, "--threads", "1"], train].concat())
}

fn launched(command: Command) -> Finished {
    finish(command)
}

/// Folders of nightly jobs may be those of the night before.
#[test]
fn a_complete_run_does_not_cover_what_fails_later() {
    let folder = Folder::new();
    let done = launched(train(&folder, &[], &["--steps", "5"]));
    done.expect(0).expect_stderr(&["launch: complete on 2 ranks of 1 hosts; exit code 0"]);
    let record = folder.record();
    assert_eq!(record["status"], "complete");
    let start = &record["attempts"][0]["start"]["launch"];
    assert!(start["mpirun_seconds"].as_f64().unwrap() > 0.0, "{start}");
    let again = launched(train(&folder, &[], &["--steps", "5"]));
    again.expect(0).expect_stderr(&["the run is complete already; exit code 0"]);
    let other = ["--steps", "5", "--set", "optimizer.weight_decay=0.05"];
    launched(train(&folder, &[], &other)).expect(2).expect_stderr(&["exit code 2"]);
    let unknown = ["--mpirun-arg=--no-such-flag"];
    let refused = launched(train(&folder, &unknown, &["--steps", "5"]));
    assert_ne!(refused.code, 0, "{refused:?}");
    let narrower = ["--ranks-per-node", "1"];
    let one = launched(train(&folder, &narrower, &["--steps", "5"]));
    one.expect(3).expect_stderr(&["expected 1 ranks on 1 hosts, but the record is of 2 ranks"]);
}

#[test]
fn a_killed_rank_is_named_long_before_the_deadline() {
    let folder = Folder::new();
    let killed = ["--steps", "40", "--inject", "kill@step=5,rank=1"];
    let finished = launched(train(&folder, &[], &killed)).expect(5);
    finished.expect_stderr(&["rank 1 on ", "ended first", "exit code 5"]);
    let record = folder.record();
    assert_eq!((&record["status"], &record["exit_code"]), (&"failed".into(), &5.into()));
    assert_eq!(record["reason"]["rank"], 1, "{}", record["reason"]);
    assert_eq!(record["reason"]["host"], record["ranks"][1]["host"]);
}

/// A launcher may be told to go before its ranks have started.
#[test]
fn a_stop_at_any_time_is_no_failure() {
    for wait in [Duration::from_millis(100), Duration::from_millis(700)] {
        let folder = Folder::new();
        let mut command = train(&folder, &["--grace", "60s"], &[]);
        let launcher = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(wait);
        kill_process(Pid::from_child(&launcher), Signal::TERM).unwrap();
        let output = launcher.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(75), "{stderr}");
        assert!(stderr.contains("exit code 75"), "{stderr}");
    }
}

#[test]
fn what_cannot_be_launched_is_refused() {
    let folder = Folder::new();
    let out = folder.text();
    let hostfile = folder.sibling("hosts");
    std::fs::write(&hostfile, "localhost slots=2\nno-such-host.invalid slots=2\n").unwrap();
    let hosts = text(&hostfile);
    let train = ["train", "--out", &out];
    let log = folder.sibling("new/launch.txt");
    let cases: [(&[&str], &[&str], i32, &str); 6] = [
        (&["--nodes", "2"], &train, 3, "expected 2 hosts, found 1: localhost"),
        (
            &["--hostfile", &hosts, "--wait", "1s", "--log", &text(&log)],
            &train,
            3,
            "no-such-host.invalid (its name has",
        ),
        (&["--hostfile", "/no/such"], &train, 2, "host file /no/such"),
        (&["--restarts", "1"], &["train", "--out", &out, "--fresh"], 2, "--fresh"),
        (&[], &["train"], 2, "expected --out DIR"),
        (&[], &["plan"], 2, "expected train, bench, comm or doctor"),
    ];
    for (flags, launch_of, code, sentence) in cases {
        launched(supervise(flags, launch_of)).expect(code).expect_stderr(&[sentence]);
    }
    let said = std::fs::read_to_string(log).unwrap();
    assert!(said.contains("no-such-host.invalid (its name has"), "{said}");
    let mut allocated = supervise(&[], &train);
    allocated.env("SLURM_JOB_NODELIST", "node[1-2]").env("SLURM_TASKS_PER_NODE", "2(x2)");
    allocated.env("PATH", "/no/scontrol").env_remove("LD_LIBRARY_PATH");
    launched(allocated).expect(3).expect_stderr(&["`scontrol show hostnames node[1-2]`"]);
    assert!(!folder.path().exists(), "nothing was run");
}

/// As in a batch script whose host file has other names than its allocation: neither Slurm, which
/// is not here, nor its list of nodes is asked.
#[test]
fn a_host_file_counts_more_than_a_slurm_allocation() {
    let folder = Folder::new();
    let hostfile = folder.sibling("hosts");
    std::fs::write(&hostfile, "localhost slots=2\n").unwrap();
    let mut command = train(&folder, &["--hostfile", &text(&hostfile)], &["--steps", "5"]);
    command.envs([("SLURM_JOBID", "1"), ("SLURM_JOB_ID", "1"), ("SLURM_TASKS_PER_NODE", "1")]);
    command.envs([("SLURM_NODELIST", "node1"), ("SLURM_JOB_NODELIST", "node1")]);
    launched(command).expect(0).expect_stderr(&["complete on 2 ranks of 1 hosts"]);
}

#[test]
fn what_leaves_no_record_is_judged_by_mpirun() {
    let comm = ["comm", "--max-bytes", "4K", "--operation", "all-reduce"];
    launched(supervise(&[], &comm)).expect(0).expect_stderr(&["mpirun succeeded; exit code 0"]);
}
