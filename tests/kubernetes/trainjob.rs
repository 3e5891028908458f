//! Jobs as TrainJobs, by the controllers of Kubeflow's trainer and of JobSet, whose webhooks check
//! them when they are submitted.

use serde_json::json;

use crate::cluster::Cluster;
use crate::job::Job;
use crate::render::Format;
use crate::table::Case;
use crate::{WHOLE_JOB_SECONDS, digests, expect_complete, undisturbed};

#[test]
fn a_train_job_trains_on_both_nodes() {
    let case = Case { position: 17, title: "a TrainJob" };
    let cluster = Cluster::open();
    let job = Job::render_as(&cluster, Format::Trainjob, "train-job", &[]);
    case.begin(&cluster);
    let ended = job.wait_for_end(job.apply(), WHOLE_JOB_SECONDS);
    case.add(&job, "trains on both nodes", &ended);
    expect_complete(&job, &ended);
    assert_eq!(ended.status, "Complete");
    // The trainer keeps the runtime while a job uses it, for which it has to write it.
    let runtime = cluster.get(&["trainingruntime", "train-job"]);
    let finalizer = "trainer.kubeflow.org/resource-in-use";
    assert_eq!(runtime["metadata"]["finalizers"], json!([finalizer]), "{runtime:#}");
    assert_eq!(&digests(&job.record()), undisturbed(&cluster));
}

#[test]
fn a_train_job_whose_rank_exits_4() {
    let case = Case { position: 18, title: "a TrainJob" };
    let cluster = Cluster::open();
    let job = Job::render_as(&cluster, Format::Trainjob, "train-job-4", &[]);
    let job = job.inject("nan@step=3,rank=1");
    case.begin(&cluster);
    let ended = job.wait_for_end(job.apply(), 90);
    case.add(&job, "a loss that is not finite", &ended);
    ended.expect(4, &["step 3"]);
    assert_eq!(ended.status, "Failed");
    let record = job.record();
    assert_eq!((&record["status"], &record["exit_code"]), (&json!("failed"), &json!(4)));
}
