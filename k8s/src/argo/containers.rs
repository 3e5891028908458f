//! Workflow tasks that run a command of this program, without GPUs.

use k8s_openapi::api::core::v1::Container;
use serde_json::json;

use super::objects::{Executor, Template};
use super::tasks::{BASELINE, COLLECT, CONFIGURE, VERDICT};
use crate::rendered::Job;
use crate::volumes::Mounted;
use crate::{launcher, paths, pod, train, volumes};

/// Maximum number of baseline runs to compare with: each workflow keeps copies of their records.
const NIGHTS: &str = "30";

/// Service account under which Argo's sidecar containers report the result of a task.
const EXECUTOR: &str = "yardstick-executor";

/// Builds the templates of these tasks.
pub(super) fn of(job: &Job) -> Vec<Template> {
    let baseline = job.benchmark.workflow.reporting.records.as_deref();
    let baseline = baseline.map(|store| template(job, BASELINE, show_baseline(job, store)));
    let mut all = vec![template(job, CONFIGURE, configure(job))];
    all.extend(baseline);
    all.push(template(job, COLLECT, collect(job)));
    all.push(template(job, VERDICT, judge(job)));
    all
}

/// Builds a template with the job's identity, which reaches object stores, and without a token. The
/// workflow's own identity may create jobs, so it is not used.
fn template(job: &Job, name: &'static str, arguments: Vec<String>) -> Template {
    let account = job.benchmark.workflow.service_account.as_deref().unwrap_or("default");
    Template {
        name,
        automount_service_account_token: Some(false),
        container: Some(container(job, arguments)),
        executor: Some(Executor { service_account_name: EXECUTOR }),
        pod_spec_patch: Some(security_of_argo()),
        service_account_name: Some(account.to_owned()),
        ..Template::default()
    }
}

/// Security contexts of Argo's containers, which Pod Security *restricted* admits only if they drop
/// privileges. Argo's controller has a setting for that, but it applies to all workflows of the
/// cluster.
fn security_of_argo() -> String {
    let security = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let container = |name| json!([{"name": name, "securityContext": security}]);
    json!({"initContainers": container("init"), "containers": container("wait")}).to_string()
}

fn container(job: &Job, arguments: Vec<String>) -> Container {
    let mounts = volumes::of_step(job).into_iter().map(|Mounted { mount, .. }| mount);
    Container {
        resources: Some(launcher::resources()),
        volume_mounts: Some(mounts.collect()),
        ..pod::container(job, "main", arguments)
    }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).into()
}

/// Prints the memory plan. Fails if the image's version of this program has a different workload
/// under this name than the version that rendered the job.
fn configure(job: &Job) -> Vec<String> {
    let mut all = words(["plan"]);
    all.extend(train::configuration(&job.benchmark, &job.workload_inside()));
    all.extend(["--ranks".to_owned(), job.benchmark.world().to_string()]);
    let local = job.benchmark.workload.ranks_per_node();
    all.extend(["--local-ranks".to_owned(), local.to_string()]);
    all.extend(job.workload_id().into_iter().flat_map(|id| ["--expect-id".to_owned(), id]));
    all
}

/// Prints and saves the baseline of the run; in the first night it is empty.
fn show_baseline(job: &Job, store: &str) -> Vec<String> {
    let kept = kept_baseline(job);
    let name = job.baseline_name();
    let show = ["baseline", "show", "--allow-none", "--only", &name];
    [&words(show)[..], &words(["--save", &kept, "--newest", NIGHTS, store])].concat()
}

/// Path of the saved baseline, which later changes to the shared store do not affect. It is beside
/// the run's folder, which `train` expects to be empty.
fn kept_baseline(job: &Job) -> String {
    format!("{}.baseline", job.out())
}

/// Builds the table and the page of the run. Fails unless its record is complete.
fn collect(job: &Job) -> Vec<String> {
    let out = job.out();
    let benchmark = format!("{}/{}", paths::JOB, paths::BENCHMARK_FILE);
    let page = format!("{out}/report.html");
    words(["k8s", "collect", "--benchmark", &benchmark, "--html", &page, &out])
}

/// Compares the run with the baseline, or reports it if there is no store of baselines.
fn judge(job: &Job) -> Vec<String> {
    let out = job.out();
    let reporting = &job.benchmark.workflow.reporting;
    match reporting.records {
        Some(_) => [
            &words(["compare"])[..],
            &reporting.compare[..],
            &words([&kept_baseline(job), &out])[..],
        ]
        .concat(),
        None => words(["report", &out]),
    }
}
