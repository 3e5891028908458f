//! Jobs that recover by themselves from a loss.

use serde_json::json;

use crate::job::Job;
use crate::operator::worker_name;
use crate::success::{hosts, undisturbed_fingerprint};
use crate::training::{IMPATIENT, WORKER, launch};

fn launch_again<'a>(train: &[&'a str]) -> Vec<&'a str> {
    launch(&[&["--restarts", "1"], &IMPATIENT[..]].concat(), train)
}

/// Starts a job with these workers, two of which it uses. It is training when this returns.
#[track_caller]
fn start(workers: usize) -> Job {
    let mut job = Job::new(workers);
    job.start_workers(&WORKER);
    job.start_launcher(&launch_again(&[]));
    job.wait_for_checkpoint();
    job
}

/// The launcher ends with 0 after a second attempt, and on these workers.
#[track_caller]
fn expect_recovery(mut job: Job, workers: [usize; 2]) {
    job.expect_exit(0);
    job.expect_no_rank();
    let record = job.record();
    assert_eq!(record["status"], "complete");
    assert_eq!(record["attempts"].as_array().unwrap().len(), 2);
    assert_ne!(record["attempts"][1]["resumed_after_step"], 0);
    let [first, second] = workers.map(|worker| json!(worker_name(worker)));
    assert_eq!(hosts(&record), [&first, &second]);
    assert_eq!(record["fingerprint"], *undisturbed_fingerprint());
}

#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_killed_worker_that_comes_back_elsewhere_goes_on() {
    let mut job = start(2);
    job.worker(1).kill();
    job.replace_worker(1, &WORKER);
    expect_recovery(job, [0, 1]);
}

#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_spare_worker_takes_the_place_of_a_killed_one() {
    let mut job = start(3);
    job.worker(1).kill();
    expect_recovery(job, [0, 2]);
}

/// Ranks that are cut off, rank 0 among them, still run when the rest resumes, and they still see
/// the run's folder: they must not spoil it.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_spare_worker_takes_the_place_of_one_that_is_cut_off() {
    let mut job = start(3);
    job.worker(0).port.cut();
    expect_recovery(job, [1, 2]);
}

/// The first fault of a rank is repaired; the second one ends the attempt.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_spare_worker_takes_the_place_of_one_that_computes_wrong() {
    let mut job = Job::new(3);
    job.start_workers(&WORKER);
    let first = ["--inject", "flip@step=31,rank=1,where=gradient"];
    let second = ["--inject", "flip@step=32,rank=1,where=gradient"];
    let always = ["--set", "sdc.recompute_every_steps=1"];
    let train = [first, second, always].concat();
    job.start_launcher(&launch_again(&train));
    expect_recovery(job, [0, 2]);
}

#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_spare_worker_takes_the_place_of_one_with_a_slow_rank() {
    let mut job = Job::new(3);
    job.start_workers(&WORKER);
    let slow = ["--inject", "slow-compute@rank=1,percent=300,attempt=1"];
    let killed = ["--inject", "kill@step=39,rank=1"];
    // A short run has few blocks, which prove little.
    let blocks = ["--set", "telemetry.straggler_block_steps=1"];
    let chance = ["--set", "telemetry.straggler_false_per_1000h=100000"];
    let train = [slow, killed, blocks, chance].concat();
    job.start_launcher(&launch_again(&train));
    job.expect_exit(0);
    assert!(job.output().contains("a rank on it was slow"), "{}", job.output());
    let [first, second] = [0, 2].map(|worker| json!(worker_name(worker)));
    assert_eq!(hosts(&job.record()), [&first, &second]);
}
