//! Facts that text, HTML and Markdown share: how a run ended, the workload, and its place and time.

use std::collections::BTreeSet;

use super::ReportData;
use super::workload::{batch, model, precision, sequence};
use record::hardware::{HardwareSummary, PowerCap};
use record::text::number_format::{count, scaled};
use record::text::unix_time::minute;
use record::{MeshSizes, RankRecord, Record};

/// A line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fact {
    pub(super) name: &'static str,
    pub(super) value: String,
}

/// Lists model, batch, devices, time, folder and program; `null` if the record does not have it.
pub(super) fn facts(report: &ReportData) -> Vec<Fact> {
    let ReportData { record, folder, world, .. } = report;
    let values = [
        ("model", model(record)),
        ("batch", batch(record, *world)),
        ("sequence", sequence(record)),
        ("precision", precision(record)),
        ("device", device(record)),
        ("ranks", Some(ranks(report))),
        ("model rate", model_rate(record)),
        ("started", started(record).map(|time| format!("{time} UTC"))),
        ("folder", folder.clone()),
        ("commit", Some(commit(record))),
    ];
    let known_or_null = |value: Option<String>| value.unwrap_or_else(|| "null".to_owned());
    values.map(|(name, value)| Fact { name, value: known_or_null(value) }).into()
}

/// Formats the state, the exit code and the cause of the end, with the reason in a separate line.
pub(super) fn status(report: &ReportData) -> String {
    let record = &report.record;
    let mut text = report.state.to_owned();
    if let Some(code) = record.exit_code {
        text += &format!(", exit code {code}");
    }
    if let Some(reason) = &record.reason {
        let rank = reason.rank.map(|rank| format!(", {}", record.rank_name(rank)));
        let host = reason.host.as_ref().map(|host| format!(" on {host}"));
        let step = reason.step.map(|step| format!(", step {step}"));
        let phase = reason.phase.map(|phase| format!(", in {}", phase.name()));
        text.extend([rank, host, step, phase].into_iter().flatten());
        text += &format!("\n{}", reason.text);
    }
    text
}

/// Share of a rate that the model's FLOPs take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Utilization {
    /// Name of the causal figure in the record.
    pub(super) name: &'static str,
    /// Rate that it is a share of.
    pub(super) of: &'static str,
    pub(super) causal: f64,
    pub(super) full: f64,
}

/// Lists the known utilizations of the published peak and of the measured matmul rate.
pub(super) fn utilizations(record: &Record) -> Vec<Utilization> {
    let of_peak = record.mfu_causal.zip(record.mfu_full).map(|(causal, full)| Utilization {
        name: "mfu_causal",
        of: "published peak",
        causal,
        full,
    });
    let of_measured = record.mfu_measured.map(|measured| Utilization {
        name: "mfu_measured",
        of: "measured matmul rate",
        causal: measured.causal,
        full: measured.full,
    });
    of_peak.into_iter().chain(of_measured).collect()
}

/// Adds the cap on the power of GPUs to their utilization, if they have one: the lowest of them.
pub(super) fn with_power_cap(utilization: String, record: &Record) -> String {
    let read = record.ranks.iter().filter(|rank| rank.gpu.is_some());
    let gpus = one_a_gpu(read).filter_map(|rank| rank.gpu.as_ref());
    let caps: Vec<Option<PowerCap>> = gpus.map(HardwareSummary::power_cap).collect();
    let capped: Vec<PowerCap> = caps.iter().copied().flatten().collect();
    match capped.iter().copied().min_by(|a, b| a.watts.total_cmp(&b.watts)) {
        None => utilization,
        Some(lowest) if capped.len() == caps.len() => format!("{utilization} ({lowest})"),
        Some(lowest) => {
            format!("{utilization} ({} of {} GPUs {lowest})", capped.len(), caps.len())
        }
    }
}

/// Leaves one of the ranks that share a GPU, and those of which no GPU is known.
fn one_a_gpu<'a>(
    ranks: impl Iterator<Item = &'a RankRecord>,
) -> impl Iterator<Item = &'a RankRecord> {
    let mut counted = BTreeSet::new();
    ranks.filter(move |rank| match &rank.device {
        Some(device) => counted.insert((&rank.host, &device.pci_bus_id)),
        None => true,
    })
}

/// Names the GPUs, or else the CPU of rank 0.
fn device(record: &Record) -> Option<String> {
    let mut names: Vec<(&str, usize)> = Vec::new();
    for device in one_a_gpu(record.ranks.iter()).filter_map(|rank| rank.device.as_ref()) {
        match names.iter_mut().find(|(name, _)| *name == device.name) {
            Some((_, count)) => *count += 1,
            None => names.push((&device.name, 1)),
        }
    }
    let gpus: Vec<_> = names.iter().map(|(name, count)| format!("{count} x {name}")).collect();
    if !gpus.is_empty() {
        return Some(gpus.join(", "));
    }
    let cpu = record.environment.machine.cpu_model.as_ref()?;
    let threads = record.ranks.first().map(|rank| count(rank.threads, "thread"));
    Some(format!("{cpu}, {} a rank", threads?))
}

/// Formats the rate of the model on one rank's device.
fn model_rate(record: &Record) -> Option<String> {
    let rate = record.rank_flops_per_second?;
    let [causal, full] = [rate.causal, rate.full].map(|rate| scaled(rate, "FLOP/s"));
    Some(format!("{causal} causal, {full} full, per rank"))
}

fn ranks(report: &ReportData) -> String {
    let ranks = count(report.world, "rank");
    let ranks = match MeshSizes::of(&report.record.ranks) {
        Some(MeshSizes { data, shard }) => format!("{ranks} (data {data} x shard {shard})"),
        None => ranks,
    };
    match report.hosts.as_slice() {
        [] => ranks,
        hosts if hosts.len() <= 4 => format!("{ranks} on {}", hosts.join(", ")),
        hosts => format!("{ranks} on {} ({}, ...)", count(hosts.len(), "host"), hosts[0]),
    }
}

/// Formats the first start, as in "2026-11-24 08:30".
pub(super) fn started(record: &Record) -> Option<String> {
    Some(minute(record.attempts.first()?.started_unix_ms))
}

fn commit(record: &Record) -> String {
    let commit = record.environment.commit.as_deref().unwrap_or("null");
    format!("{commit}, version {}", record.environment.version)
}
