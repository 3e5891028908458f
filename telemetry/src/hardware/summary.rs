//! Readings of an attempt, summarized for the record in bounded memory.

use record::hardware::{HardwareSummary, Increase, PortSummary, RankHardware, Series, Spread};
use std::collections::BTreeMap;

use super::quantity::{Kind, MetricDesc, Readings, Source};

/// Hardware that cannot be read, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// The GPU of a rank.
    Gpu(String),
    /// The energy of a host that counts it.
    Energy(String),
}

/// Id of this machine; if it is hidden, the name of the host.
fn machine() -> String {
    Some(record::machine::boot_id())
        .filter(|id| !id.is_empty())
        .unwrap_or_else(record::machine::host_name)
}

/// The summaries of all sources of a rank.
#[derive(Debug, Default)]
pub struct Summaries {
    sources: BTreeMap<Source, Tallies>,
    gpu_missing: Option<String>,
    energy_missing: Option<String>,
}

impl Summaries {
    /// Adds readings of a source.
    pub fn take(&mut self, readings: &Readings) {
        self.sources.entry(readings.source.clone()).or_default().take(readings);
    }

    /// Notes that something cannot be read.
    pub fn is_missing(&mut self, missing: &Missing) {
        match missing {
            Missing::Gpu(why) => self.gpu_missing = Some(why.clone()),
            Missing::Energy(why) => self.energy_missing = Some(why.clone()),
        }
    }

    /// Summarizes the readings so far, with or without their values over time.
    pub fn summarize(&self, with_series: bool) -> RankHardware {
        let mut hardware = RankHardware {
            gpu_missing: self.gpu_missing.clone(),
            energy_missing: self.energy_missing.clone(),
            machine: machine(),
            ..RankHardware::default()
        };
        for (source, tallies) in &self.sources {
            let summary = tallies.summarize(&source.quantities(), with_series);
            match source {
                Source::Gpu => hardware.gpu = Some(summary),
                Source::Host => hardware.host = Some(summary),
                Source::Port(port) => {
                    hardware.ports.push(PortSummary { port: port.clone(), summary });
                }
            }
        }
        hardware
    }
}

/// Maximum number of readings that are kept; beyond it, only every second, fourth, ... reading is.
const KEPT_MAX: usize = 128;

/// Sums over the readings of a source.
#[derive(Debug, Default)]
struct Tallies {
    tallies: Vec<Tally>,
    readings: u64,
    kept: Vec<Readings>,
    /// One of this many readings is kept.
    stride: u64,
    last: Option<Readings>,
}

/// Sums over one quantity.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    count: u64,
    sum: f64,
    /// Sum of the values times the seconds since the previous reading, and sum of these seconds.
    weighted: f64,
    seconds: f64,
    min: f64,
    max: f64,
    /// Growth of a counter, also across its restart.
    grown: f64,
    last: f64,
}

impl Tally {
    fn take(&mut self, value: f64, seconds: f64) {
        let is_first = self.count == 0;
        self.min = if is_first { value } else { self.min.min(value) };
        self.max = if is_first { value } else { self.max.max(value) };
        self.grown += if is_first { 0.0 } else { growth(self.last, value) };
        self.sum += value;
        self.weighted += value * seconds;
        self.seconds += seconds;
        self.last = value;
        self.count += 1;
    }

    /// Mean over time: a reading stands for the time since the previous one.
    fn mean(&self) -> f64 {
        if self.seconds > 0.0 { self.weighted / self.seconds } else { self.sum / self.count as f64 }
    }
}

/// Growth of a counter; one that became smaller has restarted at 0.
pub(super) fn growth(before: f64, now: f64) -> f64 {
    if now < before { now } else { now - before }
}

impl Tallies {
    fn take(&mut self, readings: &Readings) {
        let last = self.last.as_ref().map_or(readings.seconds, |last| last.seconds);
        let seconds = readings.seconds - last;
        self.tallies.resize(readings.values.len(), Tally::default());
        for (tally, value) in self.tallies.iter_mut().zip(&readings.values) {
            value.iter().for_each(|value| tally.take(*value, seconds));
        }
        self.stride = self.stride.max(1);
        if self.readings.is_multiple_of(self.stride) {
            self.kept.push(readings.clone());
        }
        self.readings += 1;
        if self.kept.len() > KEPT_MAX {
            self.stride *= 2;
            let mut number = 0;
            self.kept.retain(|_| {
                number += 1;
                number % 2 == 1
            });
        }
        self.last = Some(readings.clone());
    }

    fn summarize(&self, quantities: &[&'static MetricDesc], with_series: bool) -> HardwareSummary {
        let ends = self.kept.first().zip(self.last.as_ref());
        let seconds = ends.map_or(0.0, |(first, last)| last.seconds - first.seconds);
        let mut summary = HardwareSummary {
            readings: self.readings,
            seconds,
            series: with_series.then(|| self.series(quantities)),
            ..HardwareSummary::default()
        };
        let known = quantities.iter().zip(&self.tallies).filter(|(_, tally)| tally.count > 0);
        for (desc, tally) in known {
            match desc.kind {
                Kind::Gauge => {
                    let mean = tally.mean();
                    let spread = Spread { mean, min: tally.min, max: tally.max };
                    summary.gauges.insert(desc.key(), spread);
                }
                Kind::Counter => {
                    let per_second = if seconds > 0.0 { tally.grown / seconds } else { 0.0 };
                    let increase = Increase { total: tally.grown, per_second };
                    summary.counters.insert(desc.key(), increase);
                }
            }
        }
        summary
    }

    fn series(&self, quantities: &[&'static MetricDesc]) -> Series {
        let Some(first) = self.kept.first() else { return Series::default() };
        let since_first = |readings: &Readings| readings.seconds - first.seconds;
        let mut series = Series {
            seconds: self.kept.iter().map(since_first).collect(),
            values: BTreeMap::new(),
        };
        for (index, desc) in quantities.iter().enumerate().filter(|(_, desc)| desc.is_charted) {
            let values: Vec<Option<f64>> = match desc.kind {
                Kind::Gauge => self.kept.iter().map(|readings| readings.values[index]).collect(),
                Kind::Counter => {
                    let rates = self.kept.windows(2).map(|pair| rate(&pair[0], &pair[1], index));
                    std::iter::once(None).chain(rates).collect()
                }
            };
            if values.iter().any(Option::is_some) {
                series.values.insert(desc.key(), values);
            }
        }
        series
    }
}

fn rate(before: &Readings, now: &Readings, index: usize) -> Option<f64> {
    let seconds = now.seconds - before.seconds;
    let grown = growth(before.values[index]?, now.values[index]?);
    (seconds > 0.0).then(|| grown / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The readings of a host at a number of seconds: CPU usage that rises each time, and 100 bytes
    /// received a second.
    fn readings(second: u64) -> Readings {
        let quantities = Source::Host.quantities();
        let value = |desc: &&MetricDesc| match desc.key().as_str() {
            "cpu_ratio.user" => Some(second as f64 / 1000.0),
            "network_bytes.receive" => Some(100.0 * second as f64),
            _ => None,
        };
        let values = quantities.iter().map(value).collect();
        Readings { source: Source::Host, seconds: 5.0 + second as f64, values }
    }

    #[test]
    fn gauges_have_a_spread_and_counters_grow() {
        let mut summaries = Summaries::default();
        (0..=1000).for_each(|second| summaries.take(&readings(second)));
        let host = summaries.summarize(true).host.unwrap();
        assert_eq!((host.readings, host.seconds), (1001, 1000.0));
        let user = host.gauges["cpu_ratio.user"];
        assert!((user.mean - 0.5005).abs() < 1e-9, "each of the second before it: {user:?}");
        assert_eq!((user.min, user.max), (0.0, 1.0));
        let received = Increase { total: 1e5, per_second: 100.0 };
        assert_eq!(host.counters["network_bytes.receive"], received);
        assert_eq!((host.gauges.len(), host.counters.len()), (1, 1), "nothing is made up");
        let series = host.series.unwrap();
        assert!((KEPT_MAX / 2..=KEPT_MAX).contains(&series.seconds.len()));
        assert_eq!(series.values["network_bytes.receive"][..2], [None, Some(100.0)]);
        let at = series.seconds[10];
        assert_eq!(series.values["cpu_ratio.user"][10], Some(at / 1000.0));
    }

    #[test]
    fn a_counter_that_starts_again_goes_on() {
        let mut tally = Tally::default();
        [5.0, 8.0, 2.0, 4.0].into_iter().for_each(|value| tally.take(value, 1.0));
        assert_eq!(tally.grown, 3.0 + 2.0 + 2.0);
    }

    #[test]
    fn nothing_is_known_of_what_was_not_read() {
        let mut summaries = Summaries::default();
        summaries.is_missing(&Missing::Gpu("no library".to_owned()));
        let hardware = summaries.summarize(true);
        assert!(hardware.gpu.is_none() && hardware.host.is_none() && hardware.ports.is_empty());
        assert_eq!(hardware.gpu_missing.as_deref(), Some("no library"));
    }
}
