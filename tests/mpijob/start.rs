//! Workers that start late, never, or as something else than they seem.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::job::Job;
use crate::operator::{host, worker_name};
use crate::success::undisturbed_fingerprint;
use crate::training::{IMPATIENT, WORKER, launch};

/// Delay of late workers.
const LATE: Duration = Duration::from_secs(2);

/// One worker is known to DNS already, the other is not.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn late_workers_are_waited_for() {
    let mut job = Job::new(2);
    job.start_worker(0, &["sh", "-c", "sleep 2; exec yardstick worker"]);
    job.start_launcher(&launch(&[], &[]));
    std::thread::sleep(LATE);
    job.start_worker(1, &WORKER);
    job.expect_exit(0);
    assert_eq!(job.record()["fingerprint"], *undisturbed_fingerprint());
}

#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_worker_that_never_comes_is_named() {
    let mut job = Job::new(2);
    job.start_worker(0, &WORKER);
    job.wait_for_ssh();
    job.start_launcher(&launch(&["--wait", "10s"], &[]));
    job.expect_exit(3);
    job.expect_sentence(&["expected 2 hosts, found 1 after 10 s", &host(&worker_name(1))]);
    assert!(!job.results().exists(), "nothing was run");
}

/// Returns the files that a killed daemon of `mpirun` leaves in a worker's folder for temporary
/// files.
fn leftovers(job: &Job, worker: usize) -> Vec<PathBuf> {
    let is_leftover = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("ompi.") || name.starts_with("prted.")
    };
    let entries = fs::read_dir(job.temporary_folder(worker)).unwrap();
    entries.map(|entry| entry.unwrap().path()).filter(is_leftover).collect()
}

/// Temporary files survive the restart of a container, and its process ids repeat.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn what_a_killed_daemon_has_left_does_no_harm() {
    let mut job = Job::new(2);
    job.start_workers(&WORKER);
    job.start_launcher(&launch(&IMPATIENT, &[]));
    job.wait_for_checkpoint();
    job.worker(1).kill();
    job.expect_exit(5);
    assert!(!leftovers(&job, 1).is_empty(), "Open MPI has other names for its folders now");
    job.start_worker(1, &WORKER);
    job.start_launcher(&launch(&[], &[]));
    job.expect_exit(0);
    assert_eq!(job.record()["fingerprint"], *undisturbed_fingerprint());
    assert_eq!(leftovers(&job, 1), [] as [PathBuf; 0]);
}

#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn two_names_of_one_worker_are_refused() {
    let mut job = Job::new(2);
    job.start_worker(0, &WORKER);
    job.give_second_name(0, 1);
    job.start_launcher(&launch(&[], &[]));
    job.expect_exit(3);
    job.expect_sentence(&[
        "expected different hosts",
        &host(&worker_name(0)),
        &host(&worker_name(1)),
    ]);
    assert!(!job.results().exists(), "nothing was run");
}

#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn another_world_than_the_host_file_s_is_refused() {
    let mut job = Job::new(2);
    job.start_workers(&WORKER);
    for (flags, sentence) in [
        (["--nodes", "3", "--ranks-per-node", "1"], "expected 3 hosts, found 2"),
        (["--nodes", "2", "--ranks-per-node", "2"], "expected 2 ranks per node"),
    ] {
        let train = ["--", "train", "--out", "/results/run"];
        job.start_launcher(&[&["yardstick", "launch"], &flags[..], &train].concat());
        job.expect_exit(3);
        job.expect_sentence(&[sentence]);
    }
    assert!(!job.results().exists(), "nothing was run");
}
