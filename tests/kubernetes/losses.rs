//! Jobs that lose a node, a pod or a rank: the launcher exits with 5, and the record names the
//! host.

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
    case.begin(&cluster);
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

/// Removes a worker in the middle of a job, which reports it, and resumes when it is applied again.
fn lose(case: Case, name: &str, what: &str, take_away: impl FnOnce(&Job<'_>, &Pod)) {
    let cluster = Cluster::open();
    let job = Job::render(&cluster, name, &[]);
    case.begin(&cluster);
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

/// Kills the worker on another node than the launcher's, and lets another take its name.
fn replace_worker(job: &Job<'_>) -> Pod {
    let worker = job.worker_elsewhere();
    job.kill(&worker);
    job.replace_pod(&worker);
    worker
}

/// A job whose worker is replaced in the middle.
struct Replaced<'a> {
    job: Job<'a>,
    worker: Pod,
    since: Instant,
}

fn job_with_replaced_worker<'a>(cluster: &'a Cluster, name: &str, restarts: u32) -> Replaced<'a> {
    let text = format!("spares = 0\nrestarts = {restarts}");
    let job = Job::render(cluster, name, &[("spares = 0", &text)]);
    job.apply();
    job.wait_for_step(MIDDLE);
    let since = Instant::now();
    let worker = replace_worker(&job);
    Replaced { job, worker, since }
}

/// Checks the record of this many attempts, the last of which read the shared tier.
#[track_caller]
fn expect_attempts(job: &Job<'_>, count: usize) {
    let record = job.record();
    let attempts = record["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), count);
    for attempt in &attempts[1..] {
        let sources = attempt["recovery"]["sources"].as_array().unwrap();
        assert!(sources.iter().any(|source| source["tier"] == "shared"), "{sources:#?}");
    }
}

#[test]
fn a_replaced_worker() {
    let case = Case { position: 7, title: "a replaced worker" };
    let cluster = Cluster::open();
    let Replaced { job, worker, since } = job_with_replaced_worker(&cluster, "replaced", 1);
    case.begin(&cluster);
    let ended = job.wait_for_end(since, WHOLE_JOB_SECONDS);
    case.add(&job, "another address, an empty nvme tier", &ended);
    expect_resumed(&job, &ended);
    let now = ended.workers.iter().find(|pod| pod.name == worker.name).unwrap();
    assert_ne!(now.address, worker.address);
    expect_attempts(&job, 2);
}

#[test]
fn a_worker_replaced_twice() {
    let case = Case { position: 12, title: "a worker replaced twice" };
    let cluster = Cluster::open();
    let Replaced { job, .. } = job_with_replaced_worker(&cluster, "replaced-twice", 2);
    case.begin(&cluster);
    // A step that only the second attempt has reached.
    job.wait_for_step(2 * MIDDLE);
    let start = Instant::now();
    replace_worker(&job);
    let ended = job.wait_for_end(start, WHOLE_JOB_SECONDS);
    case.add(&job, "`restarts = 2`", &ended);
    expect_resumed(&job, &ended);
    expect_attempts(&job, 3);
}

#[test]
fn a_rank_out_of_memory() {
    let case = Case { position: 8, title: "a rank out of memory" };
    let what = "its container exceeds its limit";
    lose(case, "out-of-memory", what, |job, worker| job.exhaust_memory(worker));
}
