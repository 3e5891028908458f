//! `yardstick launch` on this machine: its criteria of success, and its exit codes. Several hosts
//! are in tests/mpijob.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::{Finished, Folder, Running, finish, finish_waiting, supervise, text};

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
    done.expect(0).expect_stderr(&["launch: complete on 2 ranks of 1 host; exit code 0"]);
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
    one.expect(3).expect_stderr(&["expected 1 rank on 1 host, but the record is of 2 ranks"]);
}

/// Recovers as in a drill: the attempt that resumes the run is not killed again.
#[test]
fn a_restart_recovers_from_an_injected_kill() {
    let folder = Folder::new();
    let in_foreground = ["--set", "checkpoint.background=false"];
    let saves = [&["--steps", "12", "--checkpoint-every", "4steps"][..], &in_foreground].concat();
    // The other rank has written step 6 by then.
    let late = ["--inject", "slow@step=7,rank=1", "--inject", "kill@step=7,rank=1"];
    let drill = [&saves[..], &late].concat();
    let finished = launched(train(&folder, &["--restarts", "1"], &drill)).expect(0);
    finished.expect_stderr(&["starting again, 0 restarts left", "no effect, it is of attempt 1"]);
    let record = folder.record();
    assert_eq!(record["attempts"][1]["resumed_after_step"], 4, "{}", record["attempts"]);
    assert_eq!(record["goodput"]["lost_steps"], 2);
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

/// Returns whether a process has a handler for SIGTERM by now; before, the signal ends it.
fn handles_sigterm(process: Pid) -> bool {
    let status = format!("/proc/{}/status", process.as_raw_nonzero());
    let status = std::fs::read_to_string(status).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
    let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
    caught >> (Signal::TERM.as_raw() - 1) & 1 == 1
}

/// Starts it with its messages in a file.
fn start_logged(mut command: Command, log: &Path) -> Running {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(log).unwrap());
    Running::spawn(command)
}

/// A launcher may be stopped before its ranks have started.
#[test]
fn a_stop_at_any_time_is_no_failure() {
    for said in ["", "hosts answered after "] {
        let folder = Folder::new();
        let log = folder.sibling("log");
        let mut launcher = start_logged(train(&folder, &["--grace", "60s"], &[]), &log);
        let messages = || std::fs::read_to_string(&log).unwrap();
        let pid = launcher.pid();
        launcher.poll_while(|| !handles_sigterm(pid) || !messages().contains(said));
        kill_process(pid, Signal::TERM).unwrap();
        assert_eq!(launcher.wait(), Some(75), "{}", messages());
        assert!(messages().contains("exit code 75"), "{}", messages());
    }
}

/// Step of the newest checkpoint by the file of the first attempt, which may not be there yet.
fn committed_step(folder: &Folder) -> Option<u64> {
    let attempt = std::fs::read(folder.path().join("attempts/001.json")).ok()?;
    let attempt: serde_json::Value = serde_json::from_slice(&attempt).ok()?;
    attempt["committed_step"].as_u64()
}

/// Step 3 sleeps for an hour.
#[test]
fn a_second_signal_kills_ranks_and_says_what_is_lost() {
    let folder = Folder::new();
    let saves = ["--checkpoint-every", "2steps", "--set", "checkpoint.background=false"];
    let hang = [&saves[..], &["--inject", "hang@step=3,rank=0"]].concat();
    let log = folder.sibling("log");
    let mut launcher = start_logged(train(&folder, &["--grace", "1h"], &hang), &log);
    let messages = || std::fs::read_to_string(&log).unwrap();
    launcher.poll_while(|| committed_step(&folder) != Some(2));
    kill_process(launcher.pid(), Signal::TERM).unwrap();
    launcher.poll_while(|| !messages().contains("stop requested (SIGTERM): finishes step 3"));
    kill_process(launcher.pid(), Signal::TERM).unwrap();
    assert_eq!(launcher.wait(), Some(130), "{}", messages());
    let stderr = messages();
    let lost = "killed on a second request to stop: the steps after 2, the newest checkpoint, are";
    assert!(stderr.contains(lost), "{stderr}");
    assert_eq!(folder.record()["exit_code"], 130, "{stderr}");
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
    let finished = launched(allocated).expect(3);
    finished.expect_stderr(&["the nodes node[1-2] of this allocation: srun", "--hostfile"]);
    assert!(!folder.path().exists(), "nothing was run");
}

/// Runs as in a batch script whose host file has other names than its allocation: neither Slurm,
/// which is not here, nor its list of nodes is used.
#[test]
fn a_host_file_counts_more_than_a_slurm_allocation() {
    let folder = Folder::new();
    let hostfile = folder.sibling("hosts");
    std::fs::write(&hostfile, "localhost slots=2\n").unwrap();
    let mut command = train(&folder, &["--hostfile", &text(&hostfile)], &["--steps", "5"]);
    command.envs([("SLURM_JOBID", "1"), ("SLURM_JOB_ID", "1"), ("SLURM_TASKS_PER_NODE", "1")]);
    command.envs([("SLURM_NODELIST", "node1"), ("SLURM_JOB_NODELIST", "node1")]);
    launched(command).expect(0).expect_stderr(&["complete on 2 ranks of 1 host"]);
}

/// Runs as in a container, which has the variables of Slurm and not its programs.
#[test]
fn an_allocation_of_one_node_needs_no_program_of_slurm() {
    let folder = Folder::new();
    let mut command = train(&folder, &[], &["--steps", "5"]);
    command.envs([("SLURM_JOB_ID", "1"), ("SLURM_TASKS_PER_NODE", "2")]);
    command.env("SLURM_JOB_NODELIST", "node1");
    let elsewhere = launched(command); // `salloc` gives a shell on the host that it runs on
    elsewhere.expect(3).expect_stderr(&["nodes node1 of this allocation", "--hostfile"]);
    let mut command = train(&folder, &[], &["--steps", "5"]);
    command.envs([("SLURM_JOB_ID", "1"), ("SLURM_TASKS_PER_NODE", "2"), ("SLURM_PROCID", "0")]);
    command.env("SLURM_JOB_NODELIST", "node1");
    launched(command).expect(0).expect_stderr(&["complete on 2 ranks of 1 host"]);
}

/// Stands for ssh: runs the command here, after what a login's scripts print.
const SSH: &str = r#"#!/bin/sh
while :; do
    case "$1" in -o | -l) shift 2 ;; --) shift; break ;; -*) shift ;; *) break ;; esac
done
echo "$1" >>"$SEEN"
shift
printf "$BANNER"
exec /bin/sh -c "$*"
"#;

/// Prints a banner in any encoding, and with or without the end of a line.
#[test]
fn what_a_login_prints_is_not_of_the_agent() {
    for banner in [r"Bienvenue \340 tous\n", "welcome> "] {
        let folder = Folder::new();
        let [hosts, ssh, seen] = ["hosts", "ssh", "seen"].map(|name| folder.sibling(name));
        std::fs::write(&ssh, SSH).unwrap();
        std::fs::set_permissions(&ssh, Permissions::from_mode(0o755)).unwrap();
        std::fs::write(&hosts, "me@192.0.2.1 slots = 2\n").unwrap();
        let flags = ["--hostfile", &text(&hosts), "--wait", "60s"];
        let mut command = train(&folder, &flags, &["--steps", "5"]);
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", text(ssh.parent().unwrap())));
        command.env("BANNER", banner).env("SEEN", &seen);
        launched(command).expect(0).expect_stderr(&["complete on 2 ranks of 1 host"]);
        let seen = std::fs::read_to_string(seen).unwrap();
        assert!(seen.starts_with("me@192.0.2.1\n"), "{seen}");
    }
}

/// All launchers of a user share a folder of Open MPI among temporary files, unless each has one of
/// its own: the last to end removes it, even while another one starts. Here it cannot be made.
#[test]
fn launches_at_the_same_time_share_no_session_folder() {
    let temporary = tempfile::tempdir().unwrap();
    for library in ["ompi", "prte"] {
        let user = rustix::process::geteuid().as_raw();
        let shared = format!("{library}.{}.{user}", record::machine::host_name());
        std::fs::write(temporary.path().join(shared), "").unwrap();
    }
    let comm = ["comm", "--max-bytes", "4K", "--operation", "all-reduce"];
    let start = |_| {
        let mut command = supervise(&[], &comm);
        command.env("TMPDIR", temporary.path());
        std::thread::spawn(|| finish_waiting(command))
    };
    let all: Vec<_> = (0..4).map(start).collect();
    for finished in all {
        finished.join().unwrap().expect(0);
    }
    let left = std::fs::read_dir(temporary.path()).unwrap().count();
    assert_eq!(left, 2, "only what was there before");
}

#[test]
fn what_leaves_no_record_is_judged_by_mpirun() {
    let comm = ["comm", "--max-bytes", "4K", "--operation", "all-reduce"];
    launched(supervise(&[], &comm)).expect(0).expect_stderr(&["mpirun succeeded; exit code 0"]);
}
