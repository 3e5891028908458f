//! Ranks and workers that are lost: the launcher reports it within seconds, and names them.

use serde_json::{Value, json};

use crate::job::Job;
use crate::operator::worker_name;
use crate::training::{IMPATIENT, WORKER, launch};

#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_rank_s_exit_code_is_that_of_the_launcher() {
    let mut job = Job::new(2);
    job.start_workers(&WORKER);
    job.start_launcher(&launch(&IMPATIENT, &["--inject", "nan@step=3,rank=1"]));
    job.expect_exit(4);
    job.expect_no_rank();
    let record = job.record();
    assert_eq!((&record["status"], &record["exit_code"]), (&json!("failed"), &json!(4)));
}

/// Kills a rank, as where memory is short.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_killed_rank_is_a_loss() {
    let mut job = Job::new(2);
    job.start_workers(&WORKER);
    job.start_launcher(&launch(&IMPATIENT, &["--inject", "kill@step=7,rank=1"]));
    job.expect_exit(5);
    job.expect_sentence(&["rank 1", &worker_name(1), "exit code 5"]);
    job.expect_no_rank();
    let Value::Object(reason) = &job.record()["reason"] else { panic!("{}", job.output()) };
    assert_eq!((&reason["rank"], &reason["host"]), (&json!(1), &json!(worker_name(1))));
}

/// Starts a job, and loses a worker while it trains. The launcher exits with 5, and both it and the
/// record name the worker.
#[track_caller]
fn lose(worker: usize, take_away: impl FnOnce(&mut Job)) {
    let mut job = Job::new(2);
    job.start_workers(&WORKER);
    job.start_launcher(&launch(&IMPATIENT, &[]));
    job.wait_for_checkpoint();
    take_away(&mut job);
    job.expect_exit(5);
    let name = worker_name(worker);
    job.expect_sentence(&[&name, "lost"]); // by its connection, or after mpirun has ended
    job.expect_no_rank();
    let record = job.record();
    assert_eq!((&record["status"], &record["exit_code"]), (&json!("failed"), &json!(5)));
    assert_eq!(record["reason"]["host"], json!(name), "{}", record["reason"]);
}

#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_killed_worker_is_named() {
    lose(1, |job| job.worker(1).kill());
}

/// The worker of rank 0, which writes the record.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn the_killed_worker_of_rank_0_is_named() {
    lose(0, |job| job.worker(0).kill());
}

/// Limits the wait: by itself, `mpirun` of Open MPI 4.1 waits for ever.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_worker_that_is_cut_off_is_named() {
    lose(1, |job| job.worker(1).port.cut());
}

/// Rank 0 still sees the run's folder, and has to record an end too.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn the_worker_of_rank_0_that_is_cut_off_is_named() {
    lose(0, |job| job.worker(0).port.cut());
}
