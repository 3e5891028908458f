//! `mpirun` without `yardstick launch`, as users' job files have it.

use serde_json::json;

use crate::job::{Job, PLAIN_SSHD};
use crate::mpi;
use crate::process::Process;
use crate::success::hosts;
use crate::training::TRAIN;

/// Open MPI 5 reads none of the variables that the operator sets, and starts all ranks on the
/// launcher.
#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn plain_mpirun_trains_on_both_workers_or_is_refused() {
    let mut job = Job::new(2);
    job.start_workers(&PLAIN_SSHD);
    job.wait_for_ssh();
    job.start_launcher(&[&["mpirun", "-np", "2", "yardstick"], &TRAIN[..]].concat());
    if mpi::reads_operator_variables() { trains_on_both_workers(job) } else { is_refused(job) }
}

fn trains_on_both_workers(mut job: Job) {
    job.wait_for_checkpoint();
    let ranks = job.ranks();
    assert!(ranks.len() == 2 && ranks.iter().all(Process::is_restricted), "{ranks:#?}");
    job.expect_exit(0);
    let record = job.record();
    assert_eq!(record["status"], "complete");
    assert_eq!(hosts(&record), [&json!("train-worker-0"), &json!("train-worker-1")]);
}

fn is_refused(mut job: Job) {
    job.expect_exit(3);
    job.expect_sentence(&["this rank runs on the launcher, train-launcher", "yardstick launch"]);
    assert!(!job.results().exists(), "nothing was run");
}
