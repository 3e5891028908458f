//! Metrics are those of the documentation, with the values of the steps' files.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, HistogramDataPoint, Metric, ResourceMetrics, number_data_point,
};

use super::attributes::text;
use super::observed::{RUN, STEPS};

/// Metrics that this run has no values of, or that only the endpoint of Prometheus has.
const WITHOUT_VALUES: [&str; 6] = [
    "yardstick_loss_zscore", // from 73 steps on
    "yardstick_straggler_slower_ratio",
    "yardstick_corruptions_total",
    "yardstick_warnings_total",
    "yardstick_lost_events_total",
    "yardstick_run_info",
];

/// Beginnings of the names of metrics of the hardware.
const HARDWARE: [&str; 3] = ["yardstick_gpu_", "yardstick_host_", "yardstick_rdma_"];

/// The last values that a rank has sent, by name.
#[track_caller]
fn last_of_rank(rank: u64) -> BTreeMap<&'static str, &'static Metric> {
    let of_rank = |sent: &&ResourceMetrics| RUN.rank(sent.resource.as_ref()) == rank;
    let sent = RUN.got.metrics.iter().rfind(of_rank).unwrap();
    let metrics = sent.scope_metrics.iter().flat_map(|scope| &scope.metrics);
    metrics.map(|metric| (metric.name.as_str(), metric)).collect()
}

/// The value of a counter or gauge of this rank.
#[track_caller]
fn number(metric: &Metric, rank: u64) -> f64 {
    let points = match metric.data.as_ref().unwrap() {
        Data::Sum(sum) => &sum.data_points,
        Data::Gauge(gauge) => &gauge.data_points,
        other => panic!("{}: {other:?}", metric.name),
    };
    let [point] = &points[..] else { panic!("{}: {points:?}", metric.name) };
    assert_eq!(text(&point.attributes, "rank"), rank.to_string());
    match point.value.unwrap() {
        number_data_point::Value::AsDouble(value) => value,
        number_data_point::Value::AsInt(value) => value as f64,
    }
}

#[track_caller]
fn histogram(metric: &Metric) -> &[HistogramDataPoint] {
    match metric.data.as_ref().unwrap() {
        Data::Histogram(histogram) => {
            let cumulative = AggregationTemporality::Cumulative as i32;
            assert_eq!(histogram.aggregation_temporality, cumulative);
            &histogram.data_points
        }
        other => panic!("{}: {other:?}", metric.name),
    }
}

/// A row of the table in docs/metrics.md.
fn row(metric: &Metric) -> String {
    let kind = match metric.data.as_ref().unwrap() {
        Data::Sum(sum) => {
            assert!(sum.is_monotonic, "{}", metric.name);
            "counter"
        }
        Data::Gauge(_) => "gauge",
        Data::Histogram(_) => "histogram",
        other => panic!("{}: {other:?}", metric.name),
    };
    format!("| `{}` | {kind} | {} |", metric.name, metric.description)
}

#[test]
fn every_metric_of_the_documentation_arrives_from_every_rank() {
    let page = include_str!("../../../docs/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `yardstick_"));
    let is_hardware = |row: &str| HARDWARE.iter().any(|prefix| row.contains(prefix));
    let has_values =
        |row: &&str| !WITHOUT_VALUES.iter().any(|name| row.contains(name)) && !is_hardware(row);
    let mut expected: Vec<_> = rows.filter(has_values).collect();
    expected.sort_unstable();
    for rank in [0, 1] {
        let mut found: Vec<_> = last_of_rank(rank).into_values().map(row).collect();
        found.retain(|row| has_values(&row.as_str()));
        found.sort_unstable();
        assert_eq!(found, expected, "rank {rank}");
    }
}

/// Some machines report only a part of it; one rank of a node reports the host.
#[test]
fn hardware_is_sent_by_the_first_rank_of_the_node() {
    let name = "yardstick_host_memory_available_bytes";
    let metrics = last_of_rank(0);
    let Some(Data::Gauge(memory)) = &metrics[name].data else { panic!("{:?}", metrics[name]) };
    let value = memory.data_points[0].value.unwrap();
    assert!(matches!(value, number_data_point::Value::AsDouble(bytes) if bytes > 1e6), "{value:?}");
    assert!(!last_of_rank(1).contains_key(name));
}

#[test]
fn values_are_those_of_the_steps() {
    for rank in [0, 1] {
        let metrics = last_of_rank(rank);
        let steps = RUN.folder.steps(rank as usize);
        let last = &steps.last().unwrap().0;
        let number = |name: &str| number(metrics[name], rank);
        assert_eq!(number("yardstick_step"), STEPS as f64);
        assert_eq!(number("yardstick_steps_total"), STEPS as f64);
        assert_eq!(number("yardstick_loss"), last["loss"].as_f64().unwrap());
        let tokens: f64 = steps.iter().map(|step| step.0["tokens"].as_f64().unwrap()).sum();
        assert_eq!(number("yardstick_tokens_total"), tokens);
        let [times] = histogram(metrics["yardstick_step_duration_seconds"]) else { panic!() };
        assert_eq!(times.count, STEPS);
        assert_eq!(times.explicit_bounds.len(), 19);
        let wall_ns: f64 = steps.iter().map(|step| step.0["wall_ns"].as_f64().unwrap()).sum();
        assert!((times.sum.unwrap() - wall_ns / 1e9).abs() < 1e-9, "{times:?}");
        let phases = histogram(metrics["yardstick_phase_duration_seconds"]);
        let sum: f64 = phases.iter().map(|phase| phase.sum.unwrap()).sum();
        assert_eq!(phases.len(), 8);
        assert!((sum - wall_ns / 1e9).abs() < 1e-9, "{phases:?}");
    }
}
