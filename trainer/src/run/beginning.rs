//! Start of an attempt's record, on rank 0.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use device::cuda::{Libraries, Required, Versions};
use record::{
    Anomaly, FlopsPerToken, JobRecord, NodeReport, PodList, RankRecord, WorkloadRecord,
    benchmark_file, node_anomalies, node_groups, peaks, rank_anomalies,
};
use serde_json::json;
use telemetry::Events;
use telemetry::fact::{Begun, JobPods};

use super::environment::environment;
use crate::config::Config;
use crate::failure::Outcome;
use crate::time_limit::within;

/// Timeout of reading the file with the status of pods.
const PODS_TIMEOUT: Duration = Duration::from_secs(2);

/// Largest age of that file: an older one is of another night.
const PODS_AGE_MAX: Duration = Duration::from_secs(60);

/// Job at its start.
#[derive(Debug)]
pub(super) struct JobReport {
    pub(super) ranks: Vec<RankRecord>,
    pub(super) nodes: Vec<NodeReport>,
    /// Faults that are injected into the job.
    pub(super) injected: Vec<String>,
    /// Library of the ranks' communication.
    pub(super) library: Option<String>,
}

/// Collects the report, and warns of what is unusual about the ranks and their nodes.
pub(super) fn begun(
    config: &Config,
    workload_id: &str,
    attempt: u32,
    report: JobReport,
    events: &Events,
) -> Outcome<Begun> {
    let JobReport { ranks, nodes, injected, library } = report;
    let workload = &config.workload;
    let telemetry = &config.settings.telemetry;
    let compute = workload.precision.compute;
    let nodes = node_groups(nodes);
    let full_speed = models::fused::full_speed_kernels(compute);
    let unusual = rank_anomalies(&ranks, compute, full_speed).into_iter();
    unusual.chain(node_anomalies(&nodes)).for_each(|anomaly| events.warn(anomaly));
    let job = benchmark_file::of_environment()?.and_then(|benchmark| benchmark.job);
    let file = Some(&telemetry.pods).filter(|file| !file.is_empty());
    let pods = file.and_then(|file| {
        let explain = |error| {
            let text = format!("telemetry.pods: the start of pods is not known: {error}");
            events.warn(Anomaly { step: None, rank: None, text });
        };
        pods_of(file, job.as_ref()).map_err(explain).ok()
    });
    let RankRecord { matmul_kernel, device, .. } = &ranks[0];
    let cuda = device.is_some().then(cuda_versions).flatten();
    let flops = models::flops::flops_per_token(&workload.model, workload.batch.sequence_tokens);
    Ok(Begun {
        attempt,
        workload: WorkloadRecord {
            id: workload_id.to_owned(),
            name: config.name.clone(),
            config: json!(workload),
        },
        run: json!(config.settings_in_effect()),
        environment: environment(library, matmul_kernel.clone(), cuda),
        peak_flops_per_second: peaks::of_a_rank(&ranks, compute),
        ranks,
        nodes,
        job,
        pods,
        injected,
        flops_per_token: FlopsPerToken { causal: flops.causal, full: flops.full },
        bucket_bytes: config.settings.collectives.bucket_bytes as u64,
        price_per_node_hour: telemetry.price_per_node_hour,
    })
}

/// Returns the status of the pods of a job; without a job, of the only job in the file.
///
/// # Errors
/// A sentence on why it is not known.
fn pods_of(file: &str, job: Option<&JobRecord>) -> Result<JobPods, String> {
    let pods = read_pods(file)?;
    let job = job.map(|job| job.name.as_str()).or_else(|| pods.only_job());
    let job = job.ok_or_else(|| format!("{file}: expected pods of one job"))?.to_owned();
    Ok(JobPods { job, pods: Arc::new(pods) })
}

/// Returns the status of the job's pods once more, if a file with it is named: pods that became
/// ready just before the attempt began may have been missing. Errors were reported when it began.
pub(super) fn pods_again(config: &Config) -> Option<JobPods> {
    let file = Some(&config.settings.telemetry.pods).filter(|file| !file.is_empty())?;
    let benchmark = benchmark_file::of_environment().ok()?;
    pods_of(file, benchmark.and_then(|benchmark| benchmark.job).as_ref()).ok()
}

/// Reads on a thread of its own: the other ranks wait for this one, and the storage of the file may
/// hang.
fn read_pods(file: &str) -> Result<PodList, String> {
    let path = PathBuf::from(file);
    within(PODS_TIMEOUT, move || require_recent(&path).and_then(|()| PodList::read(&path)))
        .map_err(|error| error.to_string())?
        .unwrap_or_else(|| Err(format!("{file} has not answered: is storage hung?")))
}

/// Fails if the file is old: its writer may have ended long ago.
fn require_recent(file: &std::path::Path) -> Result<(), String> {
    let modified = std::fs::metadata(file).and_then(|found| found.modified());
    let modified = modified.map_err(|error| format!("{}: {error}", file.display()))?;
    let age = modified.elapsed().unwrap_or_default();
    if age <= PODS_AGE_MAX {
        return Ok(());
    }
    Err(format!(
        "{}: expected a file that is kept up to date, found one that is {} s old",
        file.display(),
        age.as_secs()
    ))
}

/// Returns the versions of the open libraries.
fn cuda_versions() -> Option<Versions> {
    Libraries::open(&Required::NONE).ok().map(Libraries::versions)
}
