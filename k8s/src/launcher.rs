//! The launcher's pod: `yardstick launch` waits for the workers, runs `mpirun`, and judges the run
//! by its record.

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::benchmark::Benchmark;
use super::format::Format;
use super::rendered::Job;
use super::{placement, pod, train, volumes};
use record::text::duration;

/// Builds the launcher's pod with these arguments.
pub(super) fn template(job: &Job, arguments: Vec<String>) -> PodTemplateSpec {
    let container =
        Container { resources: Some(resources()), ..pod::container(job, "launcher", arguments) };
    let mut template = pod::template(job, container, volumes::of_launcher(job));
    template.spec = template.spec.map(|common| PodSpec {
        node_selector: placement::node_labels(&job.benchmark.platform),
        tolerations: placement::tolerations_of_launcher(job),
        ..common
    });
    template
}

/// Resources of the launcher: it has one ssh session per worker and computes nothing.
pub(super) fn resources() -> ResourceRequirements {
    let of = |cpu: &str, memory: &str| {
        let all = [("cpu", cpu), ("memory", memory)];
        Some(all.map(|(name, text)| (name.to_owned(), Quantity(text.to_owned()))).into())
    };
    ResourceRequirements {
        requests: of("100m", "256Mi"),
        limits: of("1", "1Gi"),
        ..ResourceRequirements::default()
    }
}

/// Arguments of `launch ... -- train ...`.
pub(super) fn train(job: &Job) -> Vec<String> {
    let mut all = launch(job, job.benchmark.workload.restarts);
    all.extend(["--".to_owned(), "train".to_owned()]);
    all.extend(job.train_arguments(&job.workload_inside()));
    all
}

/// Arguments of `launch ... -- doctor ...`, with the same workers, ranks and tiers. The report is
/// beside the folder of the run, because the doctor's pods are removed.
pub(super) fn doctor(job: &Job) -> Vec<String> {
    let required = &job.benchmark.workflow.doctor.require;
    let mut all = launch(job, 0);
    all.extend(["--".to_owned(), "doctor".to_owned()]);
    all.extend(train::configuration(&job.benchmark, &job.workload_inside()));
    all.extend(["--out".to_owned(), job.out()]);
    all.extend(["--report".to_owned(), format!("{}.doctor.txt", job.out())]);
    if !required.is_empty() {
        all.extend(["--require".to_owned(), required.join(",")]);
    }
    all
}

/// Arguments of `launch`. Workers beyond `--nodes` are spare. A workflow removes its jobs and logs.
fn launch(job: &Job, restarts: u32) -> Vec<String> {
    let workload = &job.benchmark.workload;
    let mut all = vec!["launch".to_owned()];
    let mut flag = |name: &str, value: Option<String>| {
        all.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    };
    flag("--nodes", Some(workload.nodes.to_string()));
    flag("--ranks-per-node", Some(workload.ranks_per_node().to_string()));
    flag("--restarts", (restarts > 0).then(|| restarts.to_string()));
    flag("--wait", workload.wait.map(duration::format));
    flag("--log", (job.format() == Format::Argo).then(|| format!("{}.launch.txt", job.out())));
    all.extend(grace(&job.benchmark));
    if !job.benchmark.platform.one_pod_per_node {
        all.push("--share-nodes".to_owned());
    }
    all
}

/// Flag with the time for ranks to stop, for the launcher and its workers.
pub(super) fn grace(benchmark: &Benchmark) -> [String; 2] {
    ["--grace".to_owned(), duration::format(benchmark.workload.grace)]
}
