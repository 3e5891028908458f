//! The WorkflowTemplate of Argo Workflows: it checks the nodes, trains, collects and judges the
//! run, and finally removes what it created. Each workflow of the template is a separate run.

mod containers;
mod objects;
mod resources;
mod tasks;

use std::time::Duration;

use objects::{
    Named, PodMetadata, Synchronization, Template, TtlStrategy, WorkflowSpec, WorkflowTemplate,
};

use super::rendered::Job;
use super::{metadata, placement, pod, security, volumes};
use crate::error::{Error, Result};

/// Service account that creates the jobs: `k8s/components/argo`. Only Argo's program runs as it.
const SERVICE_ACCOUNT: &str = "yardstick-workflow";

/// Name of the template with the tasks.
const ENTRYPOINT: &str = "benchmark";

/// Time limit of a workflow beyond that of its jobs: its other tasks, and pods that terminate.
const MARGIN: Duration = Duration::from_secs(1800);

/// Retention time of a finished workflow, with the logs of its pods.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Builds the WorkflowTemplate of a job.
///
/// # Errors
/// Exit code 2 without a time limit; 1, should the job not be serializable.
pub(super) fn of(job: &Job) -> Result<WorkflowTemplate> {
    Ok(WorkflowTemplate {
        api_version: "argoproj.io/v1alpha1",
        kind: "WorkflowTemplate",
        metadata: metadata::of_object(job, job.name()),
        spec: WorkflowSpec {
            active_deadline_seconds: limit(job)?.as_secs(),
            entrypoint: ENTRYPOINT,
            image_pull_secrets: pod::pull_secrets(&job.benchmark.workflow),
            node_selector: placement::node_labels(&job.benchmark.platform),
            on_exit: tasks::CLEAN_UP,
            pod_metadata: pod_metadata(job),
            security_context: security::of_pod(&job.benchmark),
            service_account_name: SERVICE_ACCOUNT,
            synchronization: Synchronization { mutexes: [Named { name: job.name().to_owned() }] },
            templates: templates(job)?,
            tolerations: placement::tolerations_of_launcher(job),
            ttl_strategy: TtlStrategy { seconds_after_completion: KEPT.as_secs() },
            volumes: volumes::of_step(job).into_iter().map(|mounted| mounted.volume).collect(),
        },
    })
}

/// Prevents eviction to save a node: a pod that waits for a job ends the job when it is removed.
fn pod_metadata(job: &Job) -> PodMetadata {
    PodMetadata {
        annotations: metadata::map([
            ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
            ("karpenter.sh/do-not-disrupt", "true"),
        ]),
        labels: metadata::labels_of_pod(job),
    }
}

fn templates(job: &Job) -> Result<Vec<Template>> {
    let tasks = Some(tasks::of(job));
    let mut all = vec![Template { name: ENTRYPOINT, dag: tasks, ..Template::default() }];
    all.extend(containers::of(job));
    all.extend(resources::of(job)?);
    Ok(all)
}

/// Time limit of a workflow; the doctor's job may take as long as that of the run. Without a limit
/// a workflow whose job is refused, which only an event reports, would wait for ever and block all
/// later workflows.
fn limit(job: &Job) -> Result<Duration> {
    let jobs = if job.benchmark.workflow.doctor.skip { 1 } else { 2 };
    let limit = job.benchmark.workload.time_limit.ok_or_else(|| {
        Error::invalid("workload.time_limit", "none", "a duration, with --format argo")
    })?;
    Ok(limit * jobs + MARGIN)
}
