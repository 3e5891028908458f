//! Jobs that lose a node, a pod or a rank: the launcher says 5, and the record which host it was.

use std::time::Instant;

use serde_json::json;

use crate::cluster::Cluster;
use crate::job::{Ended, Job, Pod};
use crate::table::Case;
use crate::{MIDDLE, WHOLE_JOB_SECONDS, expect_resumed, goes_on};

#[track_caller]
fn expect_lost(job: &Job<'_>, ended: &Ended, host: &str) {
    ended.expect(5, &[host]);
    let record = job.record();
    assert_eq!((&record["status"], &record["exit_code"]), (&json!("failed"), &json!(5)));
    assert_eq!(record["reason"]["host"], host, "{record:#}");
}

#[test]
fn a_node_cut_off() {
    let case = Case { position: 4, title: "a node cut off" };
    let cluster = Cluster::open();
    let job = Job::render(&cluster, "cut-off", &[]);
    case.begin(&job);
    job.apply();
    job.wait_for_step(MIDDLE);
    let worker = job.worker_elsewhere();
    let start = Instant::now();
    let cut = cluster.cut_off(&worker.node);
    let ended = job.wait_for_end(start, 60);
    case.add(&job, "its cable is pulled", &ended);
    expect_lost(&job, &ended, &worker.name);
    drop(cut);
    goes_on(case, &job);
    // Its rank has seen the folder all the time, and was the last to record an end.
    assert_eq!(job.record()["attempts"][0]["reason"]["host"], worker.name.as_str());
}

/// Takes a worker away in the middle of a job, which says so, and goes on when it is applied again.
fn lose(case: Case, name: &str, what: &str, take_away: impl FnOnce(&Job<'_>, &Pod)) {
    let cluster = Cluster::open();
    let job = Job::render(&cluster, name, &[]);
    case.begin(&job);
    job.apply();
    job.wait_for_step(MIDDLE);
    let worker = job.worker_elsewhere();
    let start = Instant::now();
    take_away(&job, &worker);
    let ended = job.wait_for_end(start, 60);
    case.add(&job, what, &ended);
    expect_lost(&job, &ended, &worker.name);
    goes_on(case, &job);
}

#[test]
fn a_killed_worker() {
    let case = Case { position: 5, title: "a killed worker" };
    lose(case, "killed", "SIGKILL of all its processes", |job, worker| job.kill(worker));
}

#[test]
fn a_replaced_worker() {
    let case = Case { position: 7, title: "a replaced worker" };
    let cluster = Cluster::open();
    let restarts = ("spares = 0", "spares = 0\nrestarts = 1");
    let job = Job::render(&cluster, "replaced", &[restarts]);
    case.begin(&job);
    job.apply();
    job.wait_for_step(MIDDLE);
    let worker = job.worker_elsewhere();
    let start = Instant::now();
    job.kill(&worker);
    job.replace_pod(&worker);
    let ended = job.wait_for_end(start, WHOLE_JOB_SECONDS);
    case.add(&job, "another address, an empty nvme tier", &ended);
    expect_resumed(&job, &ended);
    let now = ended.workers.iter().find(|pod| pod.name == worker.name).unwrap();
    assert_ne!(now.address, worker.address);
    let record = job.record();
    let attempts = record["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 2);
    let sources = attempts[1]["recovery"]["sources"].as_array().unwrap();
    assert!(sources.iter().any(|source| source["tier"] == "shared"), "{sources:#?}");
}

#[test]
fn a_rank_out_of_memory() {
    let case = Case { position: 8, title: "a rank out of memory" };
    let what = "its container exceeds its limit";
    lose(case, "out-of-memory", what, |job, worker| job.exhaust_memory(worker));
}
