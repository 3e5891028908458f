//! Jobs that are asked to stop: they save, and resume later.

use crate::job::Job;
use crate::success::undisturbed_fingerprint;
use crate::training::{WORKER, launch};

fn start() -> Job {
    let mut job = Job::new(2);
    job.start_workers(&WORKER);
    job.start_launcher(&launch(&[], &[]));
    job.wait_for_checkpoint();
    job
}

/// Checks that all ranks have saved, and that the same launch resumes from there.
#[track_caller]
fn expect_stop_and_go_on(mut job: Job, mend: impl FnOnce(&mut Job)) {
    job.expect_exit(75);
    job.expect_no_rank();
    let record = job.record();
    assert_eq!(record["status"], "stopped");
    let last_step = record["attempts"][0]["last_step"].clone();
    mend(&mut job);
    job.start_launcher(&launch(&[], &[]));
    job.expect_exit(0);
    let record = job.record();
    assert_eq!(record["attempts"][1]["resumed_after_step"], last_step);
    assert_eq!(record["fingerprint"], *undisturbed_fingerprint());
}

/// Drains the worker as `kubectl drain` does: its pod is terminated, and restarts on another node.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_drained_worker_lets_all_ranks_save() {
    let mut job = start();
    job.worker(1).terminate();
    let code = job.worker(1).exit_code();
    assert_eq!(code, 0, "{}", job.output());
    expect_stop_and_go_on(job, |job| job.replace_worker(1, &WORKER));
}

/// Terminates the launcher as `kubectl delete mpijob` does.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_launcher_that_is_to_go_lets_all_ranks_save() {
    let mut job = start();
    job.launcher().terminate();
    expect_stop_and_go_on(job, |_| {});
}
