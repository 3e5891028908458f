//! Metrics: their names, meanings, and changes by events.

use std::borrow::Cow;

use metrics::{
    Recorder, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::ring::MetricEvent;
use crate::hardware::{self, MetricDesc, Readings, Source};
use record::StepLine;
use record::phase::Phase;

/// Kinds of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric of the endpoint, and of OTLP. All of `METRICS` but the last have a label `rank`.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    pub name: Cow<'static, str>,
    pub kind: Kind,
    pub help: Cow<'static, str>,
}

const fn described(name: &'static str, kind: Kind, help: &'static str) -> Described {
    Described { name: Cow::Borrowed(name), kind, help: Cow::Borrowed(help) }
}

const STEP: &str = "yardstick_step";
const STEPS: &str = "yardstick_steps_total";
const TOKENS: &str = "yardstick_tokens_total";
const LOSS: &str = "yardstick_loss";
const EVALUATION_LOSS: &str = "yardstick_evaluation_loss";
const GRADIENT_NORM: &str = "yardstick_gradient_norm";
const PARAMETER_NORM: &str = "yardstick_parameter_norm";
const UPDATE_RATIO: &str = "yardstick_update_ratio";
const LOSS_Z: &str = "yardstick_loss_zscore";
const LEARNING_RATE: &str = "yardstick_learning_rate";
const STEP_TIME: &str = "yardstick_step_duration_seconds";
const PHASE_TIME: &str = "yardstick_phase_duration_seconds";
const COMMUNICATED: &str = "yardstick_communication_bytes_total";
const COMMUNICATING: &str = "yardstick_communication_duration_seconds";
const LAST_STEP: &str = "yardstick_last_step_timestamp_seconds";
const CHECKPOINTS: &str = "yardstick_checkpoints_total";
const CHECKPOINT_STEP: &str = "yardstick_checkpoint_step";
const CHECKPOINT_BYTES: &str = "yardstick_checkpoint_bytes";
const CHECKPOINT_TIME: &str = "yardstick_checkpoint_duration_seconds";
const CHECKPOINT_STALL: &str = "yardstick_checkpoint_stall_seconds";
const STRAGGLER: &str = "yardstick_straggler_slower_ratio";
const CORRUPTIONS: &str = "yardstick_corruptions_total";
const WARNINGS: &str = "yardstick_warnings_total";
const LOST: &str = "yardstick_lost_events_total";
const INFO: &str = "yardstick_run_info";

/// Every metric but those of the hardware.
const METRICS: [Described; 25] = [
    described(STEP, Kind::Gauge, "Number of the last step."),
    described(STEPS, Kind::Counter, "Steps of this attempt."),
    described(TOKENS, Kind::Counter, "Tokens of the global batches of these steps."),
    described(LOSS, Kind::Gauge, "Mean cross-entropy of the last step, nats per token."),
    described(EVALUATION_LOSS, Kind::Gauge, "Last held-out loss, nats per token."),
    described(GRADIENT_NORM, Kind::Gauge, "Global gradient norm before clipping."),
    described(
        PARAMETER_NORM,
        Kind::Gauge,
        "Norm of the parameters that the last step that computed it began with.",
    ),
    described(UPDATE_RATIO, Kind::Gauge, "Norm of the update that made them, by their norm."),
    described(LOSS_Z, Kind::Gauge, "Robust z-score of the last step's loss among those before it."),
    described(LEARNING_RATE, Kind::Gauge, "Learning rate of the last step."),
    described(STEP_TIME, Kind::Histogram, "Wall time of steps."),
    described(PHASE_TIME, Kind::Histogram, "Time of steps in a phase (label phase)."),
    described(COMMUNICATED, Kind::Counter, "Bytes of the communicated buffers."),
    described(
        COMMUNICATING,
        Kind::Histogram,
        "Time of steps with a bucket in flight, hidden or exposed (label kind).",
    ),
    described(LAST_STEP, Kind::Gauge, "Unix time of the end of the last step."),
    described(CHECKPOINTS, Kind::Counter, "Committed checkpoints of this attempt."),
    described(CHECKPOINT_STEP, Kind::Gauge, "Step of the last committed checkpoint."),
    described(CHECKPOINT_BYTES, Kind::Gauge, "Size of the last checkpoint over all ranks."),
    described(CHECKPOINT_TIME, Kind::Histogram, "From a trigger to the commit."),
    described(CHECKPOINT_STALL, Kind::Histogram, "For how long saves stopped training."),
    described(
        STRAGGLER,
        Kind::Gauge,
        "By how much a slow rank exceeds the pace it is compared with (label kind); 0 when over.",
    ),
    described(
        CORRUPTIONS,
        Kind::Counter,
        "Wrong values that checks found (labels what; rank, empty if unknown).",
    ),
    described(WARNINGS, Kind::Counter, "Warnings of this attempt."),
    described(LOST, Kind::Counter, "Events that the endpoint was too late to read."),
    described(INFO, Kind::Gauge, "Which run it is: workload, workload_id, version, attempt."),
];

/// Upper ends of the buckets of all histograms: 1 ms to 1000 s, three for each factor of 10.
pub(crate) const BUCKETS_SECONDS: [f64; 19] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0,
    200.0, 500.0, 1000.0,
];

/// Runs a function whose metrics are sent to this recorder.
pub(crate) fn with(recorder: &impl Recorder, body: impl FnOnce()) {
    metrics::with_local_recorder(recorder, body);
}

/// Every metric.
pub(crate) fn all() -> Vec<Described> {
    let mut all = METRICS.to_vec();
    for source in Source::KINDS {
        let mut quantities = source.quantities();
        quantities.dedup_by_key(|desc| desc.name);
        all.extend(quantities.into_iter().map(|desc| Described {
            name: Cow::Owned(hardware_name(&source, desc)),
            kind: match desc.kind {
                hardware::Kind::Gauge => Kind::Gauge,
                hardware::Kind::Counter => Kind::Counter,
            },
            help: match desc.label {
                None => Cow::Borrowed(desc.help),
                Some(label) => Cow::Owned(format!("{} (label {})", desc.help, label.name)),
            },
        }));
    }
    all
}

/// Describes every metric to the recorder of this thread.
pub(super) fn describe() {
    for Described { name, kind, help } in all() {
        match kind {
            Kind::Counter => describe_counter!(name, help),
            Kind::Gauge => describe_gauge!(name, help),
            Kind::Histogram => describe_histogram!(name, help),
        }
    }
}

/// Sets the metric that identifies the run.
pub(super) fn info(labels: &[(String, String)]) {
    gauge!(INFO, labels).set(1.0);
}

/// Counts overwritten events.
pub(super) fn lost(rank: &str, events: u64) {
    counter!(LOST, "rank" => rank.to_owned()).increment(events);
}

/// Updates the metrics of a rank.
pub(crate) fn take(rank: &str, event: MetricEvent) {
    let rank = rank.to_owned();
    match event {
        MetricEvent::Step(line) => step(&rank, &line),
        MetricEvent::Hardware(readings) => hardware(&rank, &readings),
        MetricEvent::Warning => counter!(WARNINGS, "rank" => rank).increment(1),
        MetricEvent::Verdict(found) => {
            let is_over = found.until_step.is_some();
            let labels = [("rank", found.rank.to_string()), ("kind", found.kind.name().to_owned())];
            gauge!(STRAGGLER, &labels).set(if is_over { 0.0 } else { found.slower_share });
        }
        MetricEvent::Corruption { rank, what } => {
            let rank = rank.map_or(String::new(), |rank| rank.to_string());
            let labels = [("rank", rank), ("what", what.name().to_owned())];
            counter!(CORRUPTIONS, &labels).increment(1);
        }
        MetricEvent::Checkpoint(saved) => {
            let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
            counter!(CHECKPOINTS, "rank" => rank.clone()).increment(1);
            gauge!(CHECKPOINT_STEP, "rank" => rank.clone()).set(saved.step as f64);
            gauge!(CHECKPOINT_BYTES, "rank" => rank.clone()).set(saved.bytes as f64);
            histogram!(CHECKPOINT_TIME, "rank" => rank.clone()).record(seconds(saved.save_ns));
            histogram!(CHECKPOINT_STALL, "rank" => rank).record(seconds(saved.stall_ns));
        }
    }
}

fn step(rank: &str, line: &StepLine) {
    let sample = &line.sample;
    let labels = || [("rank", rank.to_owned())];
    let set = |name, value: f64| gauge!(name, &labels()).set(value);
    set(STEP, sample.step as f64);
    set(LOSS, sample.loss);
    set(GRADIENT_NORM, sample.gradient_norm);
    set(LEARNING_RATE, sample.learning_rate);
    set(LAST_STEP, line.unix_ms as f64 / 1e3);
    let optional = [
        (EVALUATION_LOSS, sample.evaluation_loss),
        (PARAMETER_NORM, sample.parameter_norm),
        (UPDATE_RATIO, sample.update_ratio),
        (LOSS_Z, sample.loss_z),
    ];
    for (name, value) in optional {
        value.into_iter().for_each(|value| set(name, value));
    }
    counter!(STEPS, &labels()).increment(1);
    counter!(TOKENS, &labels()).increment(sample.tokens);
    counter!(COMMUNICATED, &labels()).increment(sample.comm_bytes);
    histogram!(STEP_TIME, &labels()).record(sample.wall_ns as f64 / 1e9);
    for phase in Phase::ALL {
        let labels = [("rank", rank.to_owned()), ("phase", phase.name().to_owned())];
        histogram!(PHASE_TIME, &labels).record(sample.phases.get(phase) as f64 / 1e9);
    }
    let kinds = [("hidden", sample.comm_hidden_ns), ("exposed", sample.phases.comm_exposed)];
    for (kind, spent_ns) in kinds {
        let labels = [("rank", rank.to_owned()), ("kind", kind.to_owned())];
        histogram!(COMMUNICATING, &labels).record(spent_ns as f64 / 1e9);
    }
}

/// Name of the metric of a hardware quantity.
fn hardware_name(source: &Source, desc: &MetricDesc) -> String {
    let suffix = if desc.kind == hardware::Kind::Counter { "_total" } else { "" };
    format!("{}_{}{suffix}", source.prefix(), desc.name)
}

/// Updates hardware metrics. Those of a GPU have its rank as a label; a host and its ports are the
/// same for all of its ranks.
fn hardware(rank: &str, readings: &Readings) {
    let source = &readings.source;
    let place = match source {
        Source::Gpu => Some(("rank", rank.to_owned())),
        Source::Port(port) => Some(("port", port.clone())),
        Source::Host => None,
    };
    for (desc, value) in source.quantities().into_iter().zip(&readings.values) {
        let Some(value) = *value else { continue };
        let of = desc.label.map(|label| (label.name, label.value.to_owned()));
        let labels: Vec<_> = place.iter().cloned().chain(of).collect();
        let name = hardware_name(source, desc);
        match desc.kind {
            hardware::Kind::Gauge => gauge!(name, &labels).set(value),
            hardware::Kind::Counter => counter!(name, &labels).absolute(value as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page lists each metric with its kind and its help text.
    #[test]
    fn the_documentation_lists_every_metric() {
        let page = include_str!("../../../../docs/metrics.md");
        let all = all();
        for Described { name, kind, help } in &all {
            let kind = format!("{kind:?}").to_lowercase();
            let row = format!("| `{name}` | {kind} | {help} |");
            assert!(page.contains(&row), "docs/metrics.md lacks:\n{row}");
        }
        assert_eq!(page.matches("| `yardstick_").count(), all.len(), "and no other");
    }
}
