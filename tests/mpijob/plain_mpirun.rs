//! `mpirun` without `yardstick launch`, as users' job files have it.

use std::time::Duration;

use serde_json::json;

use crate::job::{Job, PLAIN_SSHD};
use crate::process::Process;
use crate::success::hosts;
use crate::training::TRAIN;

#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn plain_mpirun_trains_on_both_workers() {
    let mut job = Job::new(2);
    job.start_workers(&PLAIN_SSHD);
    job.wait_for_ssh();
    job.start_launcher(&[&["mpirun", "-np", "2", "yardstick"], &TRAIN[..]].concat());
    job.wait_for_checkpoint();
    let ranks = job.ranks();
    assert!(ranks.len() == 2 && ranks.iter().all(Process::is_restricted), "{ranks:#?}");
    job.expect_exit(0, Duration::from_secs(40));
    let record = job.record();
    assert_eq!(record["status"], "complete");
    assert_eq!(hosts(&record), [&json!("train-worker-0"), &json!("train-worker-1")]);
}
