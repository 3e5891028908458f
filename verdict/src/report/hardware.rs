//! Lines about hardware: readings of GPUs and hosts, energy and cost.

use record::Record;
use record::hardware::HardwareSummary;
use record::text::number_format::{percent, scaled, thousands};

/// Mean over all ranks' GPUs; `None` without any readings.
pub(super) fn gpus(record: &Record) -> Option<String> {
    let all: Vec<_> = record.ranks.iter().filter_map(|rank| rank.gpu.as_ref()).collect();
    let watts = |value: f64| format!("{value:.0} W");
    let megahertz = |value: f64| format!("{} MHz", thousands(value / 1e6));
    let of = |name: &str, limit: &str, format: &dyn Fn(f64) -> String| {
        let value = format(mean(&all, name)?);
        let limit = mean(&all, limit).map_or(String::new(), |it| format!(" of {}", format(it)));
        Some(value + &limit)
    };
    let parts = [
        mean(&all, "utilization_ratio").map(|share| format!("{} busy", percent(share))),
        of("power_watts", "power_limit_watts", &watts),
        of("sm_clock_hertz", "sm_clock_max_hertz", &megahertz),
        mean(&all, "temperature_celsius").map(|celsius| format!("{celsius:.0} C")),
    ];
    joined(parts)
}

/// Mean over all nodes; `None` without any readings.
pub(super) fn hosts(record: &Record) -> Option<String> {
    let all: Vec<_> = record.hosts.iter().map(|host| &host.summary).collect();
    let share =
        |name: &str, what: &str| mean(&all, name).map(|share| format!("{} {what}", percent(share)));
    let rate = |name: &str, what: &str| {
        let rate = per_second(&all, name)?;
        (rate > 0.0).then(|| format!("{what} {}", scaled(rate, "B/s")))
    };
    let parts = [
        share("cpu_ratio.user", "user"),
        share("cpu_ratio.system", "system"),
        share("cpu_ratio.steal", "stolen"),
        rate("network_bytes.transmit", "network"),
        rate("disk_bytes.write", "disks"),
    ];
    joined(parts)
}

/// Energy per token, and money per billion tokens.
pub(super) fn cost(record: &Record) -> Option<String> {
    let energy = record.energy.as_ref();
    let joules = |value: Option<f64>, what: &str| {
        value.map(|value| format!("{} per token by {what}", scaled(value, "J")))
    };
    let parts = [
        joules(energy.and_then(|energy| energy.gpu_joules_per_token), "GPUs"),
        joules(energy.and_then(|energy| energy.cpu_joules_per_token), "processors"),
        record.cost.map(|cost| {
            let price = cost.price_per_node_hour;
            let billion = cost.per_billion_tokens;
            format!("{billion:.2} per billion tokens at {price} for a node and hour")
        }),
    ];
    joined(parts)
}

fn joined(parts: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let known: Vec<String> = parts.into_iter().flatten().collect();
    (!known.is_empty()).then(|| known.join(", "))
}

/// Mean of a gauge over all summaries.
fn mean(all: &[&HardwareSummary], name: &str) -> Option<f64> {
    average(all.iter().filter_map(|summary| Some(summary.gauges.get(name)?.mean)))
}

/// Mean rate of a counter over all summaries.
fn per_second(all: &[&HardwareSummary], name: &str) -> Option<f64> {
    average(all.iter().filter_map(|summary| Some(summary.counters.get(name)?.per_second)))
}

fn average(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
