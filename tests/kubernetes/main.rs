//! Jobs on a real Kubernetes: API server, controllers, scheduler, the mpi-operator, two nodes with
//! containerd and kubelet, the image that k8s/image/Dockerfile makes, in a namespace with Pod
//! Security `restricted`, or as root in the privileged one. `make k8s-e2e` starts the cluster and
//! runs them one after the other. Also as TrainJobs and as workflows, by the controllers of
//! Kubeflow's trainer and of Argo Workflows.
//!
//! The record decides about success: the table has the status of the job's object beside it.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod argo;
mod cluster;
mod job;
mod losses;
mod refusals;
mod render;
mod stops;
mod table;
mod trainjob;
mod wait;

use std::sync::OnceLock;

use cluster::Cluster;
use job::{Ended, Job};
use serde_json::{Value, json};
use table::Case;

/// Seconds that an undisturbed job may take.
const WHOLE_JOB_SECONDS: u64 = 150;

/// A step at which all is well and a checkpoint is committed.
const MIDDLE: u64 = 50;

/// Digests of all losses and of the weights at the end.
fn digests(record: &Value) -> Value {
    let fingerprint = &record["fingerprint"];
    json!({"losses": fingerprint["losses"], "weights": fingerprint["weights"]})
}

/// Returns the results of an undisturbed run.
fn undisturbed(cluster: &Cluster) -> &'static Value {
    static DIGESTS: OnceLock<Value> = OnceLock::new();
    DIGESTS.get_or_init(|| {
        let job = Job::render(cluster, "undisturbed", &[]);
        job.wait_for_end(job.apply(), WHOLE_JOB_SECONDS).expect(0, &[]);
        digests(&job.record())
    })
}

/// The job is over, and the record is that of two ranks on two hosts.
#[track_caller]
fn expect_complete(job: &Job<'_>, ended: &Ended) {
    ended.expect(0, &["complete"]);
    let record = job.record();
    assert_eq!(record["status"], "complete", "{record:#}");
    let hosts: Vec<_> = record["ranks"].as_array().unwrap().iter().map(|r| &r["host"]).collect();
    assert!(hosts.len() == 2 && hosts[0] != hosts[1], "{hosts:?}");
}

/// Checks that a run that was interrupted is complete, and has the bits of an undisturbed one.
#[track_caller]
fn expect_resumed(job: &Job<'_>, ended: &Ended) {
    expect_complete(job, ended);
    let record = job.record();
    let last = record["attempts"].as_array().unwrap().last().unwrap();
    assert!(last["resumed_after_step"].as_u64().unwrap() > 0, "{last:#}");
    assert_eq!(&digests(&record), undisturbed(job.cluster));
}

/// Applies a job again whose run was interrupted.
#[track_caller]
fn goes_on(case: Case, job: &Job<'_>) {
    job.delete();
    let ended = job.wait_for_end(job.apply(), WHOLE_JOB_SECONDS);
    case.add(job, "applied again", &ended);
    expect_resumed(job, &ended);
}

#[test]
fn success() {
    let case = Case { position: 1, title: "success" };
    let cluster = Cluster::open();
    let job = Job::render(&cluster, "success", &[]);
    case.begin(&cluster);
    let ended = job.wait_for_end(job.apply(), WHOLE_JOB_SECONDS);
    case.add(&job, "trains on both nodes", &ended);
    expect_complete(&job, &ended);
    let record = job.record();
    assert_eq!(&digests(&record), undisturbed(&cluster));
    job.delete();
    let ended = job.wait_for_end(job.apply(), WHOLE_JOB_SECONDS);
    case.add(&job, "applied again", &ended);
    ended.expect(0, &["complete already"]);
    assert_eq!(digests(&job.record()), digests(&record));
}

#[test]
fn success_as_root() {
    let case = Case { position: 13, title: "success as root" };
    let cluster = Cluster::open_privileged();
    let changes = [
        ("\"yardstick\"\nimages", "\"yardstick-privileged\"\nimages"),
        ("{ empty_dir = \"1Gi\" }", "{ host_path = \"/run/nvme\" }"),
        ("[platform]\n", "[platform]\npod_security = \"privileged\"\nroot = true\n"),
    ];
    let job = Job::render(&cluster, "as-root", &changes);
    case.begin(&cluster);
    let start = job.apply();
    job.wait_for_step(MIDDLE);
    let owner = ["exec", &job.worker_elsewhere().name, "--", "stat", "--format=%U %n", "/proc/1"];
    assert_eq!(job.kubectl(&owner), "root /proc/1\n");
    let ended = job.wait_for_end(start, WHOLE_JOB_SECONDS);
    case.add(&job, "privileged namespace, a folder of each node", &ended);
    expect_complete(&job, &ended);
}

#[test]
fn a_rank_exits_4() {
    let case = Case { position: 2, title: "a rank exits 4" };
    let cluster = Cluster::open();
    let job = Job::render(&cluster, "exits-4", &[]).inject("nan@step=3,rank=1");
    case.begin(&cluster);
    let ended = job.wait_for_end(job.apply(), 60);
    case.add(&job, "a loss that is not finite", &ended);
    ended.expect(4, &["step 3"]);
    let record = job.record();
    assert_eq!((&record["status"], &record["exit_code"]), (&json!("failed"), &json!(4)));
    let reason = &record["reason"];
    assert_eq!((&reason["rank"], &reason["step"]), (&json!(1), &json!(3)), "{reason:#}");
}
