//! Job without a fault.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::job::{Job, node_name};
use crate::operator::worker_name;
use crate::process::Process;
use crate::training::{WORKER, launch};

/// Results of an undisturbed job.
#[derive(Debug)]
struct Undisturbed {
    record: Value,
    /// Pod names in its ranks' environment.
    pods: Vec<String>,
    nodes: Vec<String>,
}

/// The job; it runs once for all tests.
fn undisturbed() -> &'static Undisturbed {
    static JOB_DONE: OnceLock<Undisturbed> = OnceLock::new();
    JOB_DONE.get_or_init(|| {
        let mut job = Job::new(2);
        job.start_workers(&WORKER);
        job.start_launcher(&launch(&[], &[]));
        job.wait_for_checkpoint();
        let ranks = job.ranks();
        let value = |rank: &Process, name| rank.variable(name).unwrap_or("none").to_owned();
        let pods = ranks.iter().map(|rank| value(rank, "POD_NAME")).collect();
        let nodes = ranks.iter().map(|rank| value(rank, "NODE_NAME")).collect();
        assert!(ranks.iter().all(Process::is_restricted), "{ranks:#?}");
        job.expect_exit(0);
        job.expect_no_rank();
        Undisturbed { record: job.record(), pods, nodes }
    })
}

/// Digests of losses and weights, which every job that gets to its end must have too.
pub(crate) fn undisturbed_fingerprint() -> &'static Value {
    &undisturbed().record["fingerprint"]
}

/// Host of each rank.
pub(crate) fn hosts(record: &Value) -> Vec<&Value> {
    record["ranks"].as_array().unwrap().iter().map(|rank| &rank["host"]).collect()
}

#[test]
#[ignore = "emulates pods: needs root, overlayfs, ip of iproute2, and sshd"]
fn a_job_trains_on_both_workers_in_their_environment() {
    let Undisturbed { record, pods, nodes } = undisturbed();
    assert_eq!((&record["status"], &record["exit_code"]), (&json!("complete"), &json!(0)));
    assert_eq!(record["attempts"][0]["world"], 2);
    let workers = [0, 1].map(worker_name);
    assert_eq!(hosts(record), [&json!(workers[0]), &json!(workers[1])]);
    assert_eq!(*pods, workers);
    assert_eq!(*nodes, workers.map(|worker| node_name(&worker)));
    let nics = [0, 1].map(|rank| record["ranks"][rank]["nic"].clone());
    assert_eq!(nics, [json!("eth0"), json!("eth0")]);
}
