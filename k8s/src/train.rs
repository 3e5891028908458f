//! The arguments of `train`, which ranks run.

use super::benchmark::Benchmark;
use super::format::Format;
use super::paths;
use record::text::duration;

/// Folder of the run. Each workflow of a template is a new run; a job of the same name resumes the
/// run.
pub(super) fn out(benchmark: &Benchmark, format: Format) -> String {
    let folder = format!("{}/{}", paths::RESULTS, benchmark.name());
    if format == Format::Argo { format!("{folder}/{}", paths::WORKFLOW) } else { folder }
}

/// Configuration of `train` for other commands, with this preset or file.
pub(super) fn configuration(benchmark: &Benchmark, named: &str) -> Vec<String> {
    let device = benchmark.is_on_gpus().then(|| "run.device=cuda".to_owned());
    let object = benchmark.workflow.storage.object.as_ref();
    let object = object.map(|url| format!("checkpoint.object.path={url}"));
    let all = device.into_iter().chain(benchmark.workload.set.iter().cloned()).chain(object);
    let mut arguments = vec!["--workload".to_owned(), named.to_owned()];
    arguments.extend(all.flat_map(|item| ["--set".to_owned(), item]));
    arguments
}

/// Arguments of `train` for this preset or file, and this folder of the run.
pub(super) fn arguments(benchmark: &Benchmark, named: &str, out: &str) -> Vec<String> {
    let Benchmark { workflow, workload, .. } = benchmark;
    let reporting = &workflow.reporting;
    let mut all = Vec::new();
    let mut flag = |name: &str, value: Option<String>| {
        all.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    };
    flag("--workload", Some(named.to_owned()));
    flag("--out", Some(out.to_owned()));
    flag("--device", benchmark.is_on_gpus().then(|| "cuda".to_owned()));
    for item in &workload.set {
        flag("--set", Some(item.clone()));
    }
    flag("--steps", workload.steps.map(|steps| steps.to_string()));
    flag("--checkpoint-every", workload.checkpoint_every.map(|every| every.to_string()));
    flag("--eval-every", workload.eval_every.map(|steps| steps.to_string()));
    flag("--target-loss", workload.target_loss.map(|loss| loss.to_string()));
    let object = workflow.storage.object.as_ref();
    flag("--set", object.map(|url| format!("checkpoint.object.path={url}")));
    if reporting.metrics_port > 0 {
        let linger = duration::format(reporting.metrics_linger);
        flag("--prometheus", Some(format!("0.0.0.0:{}", reporting.metrics_port)));
        flag("--set", Some(format!("telemetry.prometheus_linger={linger}")));
    }
    flag("--otlp", reporting.otlp.clone());
    flag("--records", reporting.records.clone());
    all
}
