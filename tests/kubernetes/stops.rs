//! Jobs that are asked to stop: ranks save, and the same job resumes later.

use std::time::Instant;

use crate::cluster::Cluster;
use crate::job::Job;
use crate::table::Case;
use crate::{MIDDLE, goes_on};

#[test]
fn a_drained_worker() {
    let case = Case { position: 3, title: "a drained worker" };
    let cluster = Cluster::open();
    let job = Job::render(&cluster, "drained", &[]);
    case.begin(&cluster);
    job.apply();
    job.wait_for_step(MIDDLE);
    let node = job.worker_elsewhere().node;
    let start = Instant::now();
    cluster.kubectl(&["drain", &node, "--ignore-daemonsets", "--delete-emptydir-data"]);
    let ended = job.wait_for_end(start, 60);
    cluster.kubectl(&["uncordon", &node]);
    case.add(&job, "`kubectl drain` of its node", &ended);
    ended.expect(75, &["is to go: ranks save and stop"]);
    assert_eq!(job.record()["status"], "stopped");
    goes_on(case, &job);
}

#[test]
fn a_deleted_launcher() {
    let case = Case { position: 6, title: "a deleted launcher" };
    let cluster = Cluster::open();
    let job = Job::render(&cluster, "launcher-deleted", &[]);
    case.begin(&cluster);
    job.apply();
    job.wait_for_step(MIDDLE);
    let log = job.follow_log();
    let start = Instant::now();
    // Returns when the pod is gone, and its exit code with it.
    job.kubectl(&["delete", "pod", &job.launcher().unwrap().name]);
    let ended = job.end_by_record(start, log);
    case.add(&job, "`kubectl delete pod`", &ended);
    ended.expect(75, &["asked to stop"]);
    assert_eq!(job.record()["status"], "stopped");
    goes_on(case, &job);
}
