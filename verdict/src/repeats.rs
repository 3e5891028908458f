//! `yardstick bench`: runs a workload several times in one job, and reports figures with intervals.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use comfy_table::{Table, presets};
use serde::Serialize;

use crate::compare::Estimate;
use crate::error::{Error, Result};
use crate::page::{right, write_table};
use record::statistics::percentile;
use record::text::number_format;
use record::{self, Record, StepSeries, injected_warning};

/// A figure with its interval of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// Geometric mean of the repeats' figures, of which `compare`'s rule leaves out some from eight
    /// repeats on.
    pub estimate: f64,
    /// Lower end; `None` with one repeat, from which nothing follows.
    pub low: Option<f64>,
    /// Upper end; `None` with one repeat.
    pub high: Option<f64>,
}

impl Interval {
    /// Estimates a figure from that of the steps of each repeat, as `compare` estimates an effect
    /// from pairs: by Student's t, from logarithms. `None` without steps.
    fn of(repeats: &[Vec<f64>], figure: impl Fn(&[f64]) -> f64) -> Option<Self> {
        if repeats.iter().any(Vec::is_empty) {
            return None;
        }
        let figures: Vec<f64> = repeats.iter().map(|steps| libm::log(figure(steps))).collect();
        let one = *figures.first()?;
        let found = Estimate::paired(&figures, 0.05);
        let end = |end: fn(&Estimate) -> f64| found.as_ref().map(|found| libm::exp(end(found)));
        Some(Self {
            estimate: libm::exp(found.as_ref().map_or(one, |found| found.effect)),
            low: end(|found| found.low),
            high: end(|found| found.high),
        })
    }
}

/// Figures of all repeats. [`Display`](std::fmt::Display) is a page of 80 columns.
#[derive(Debug, Clone, Serialize)]
pub struct Bench {
    /// Name of the workload.
    pub workload: String,
    /// Id of the workload.
    pub workload_id: String,
    /// Number of ranks.
    pub world: usize,
    /// Runs in their order.
    pub repeats: Vec<Repeat>,
    /// Number of steps to measure in each repeat, once step times have settled.
    pub wanted_steps: u64,
    /// True if step times had settled in every repeat, and as many steps were measured then.
    pub is_steady: bool,
    /// Rate of all ranks together, over the measured steps of each repeat.
    pub tokens_per_second: Option<Interval>,
    /// Median of the measured steps.
    pub step_ms_median: Option<Interval>,
    /// 95th percentile of the measured steps.
    pub step_ms_p95: Option<Interval>,
    /// Limits on the meaning of the figures.
    pub warnings: Vec<String>,
}

/// A single run.
#[derive(Debug, Clone, Serialize)]
pub struct Repeat {
    /// Folder of the run.
    pub folder: String,
    /// Number of warm-up steps, which are left out.
    pub warmup_steps: u64,
    /// Number of measured steps.
    pub measured_steps: u64,
    /// True if step times had settled after the warm-up, as in the record.
    pub is_steady: bool,
    /// Rate over the measured steps.
    pub tokens_per_second: f64,
    /// Median time of a step.
    pub step_ms_median: f64,
    /// Digest of the losses of all its steps. A repeat may have more steps than another: the losses
    /// of the steps that both have are equal.
    pub losses: String,
}

impl Bench {
    /// Reads the folders of the runs.
    ///
    /// # Errors
    /// When a record or a file of steps cannot be read.
    pub fn read(folders: &[impl AsRef<Path>], wanted_steps: u64) -> Result<Self> {
        let mut repeats = Vec::new();
        let mut losses = Vec::new();
        let mut step_ms = Vec::new();
        let mut tokens_per_step = 0.0;
        let mut injected = BTreeSet::new();
        let mut last = None;
        for folder in folders.iter().map(AsRef::as_ref) {
            let record = Record::read(folder)?;
            let series = StepSeries::read(folder, record.ranks.len(), None)?;
            repeats.push(Repeat::of(folder, &record)?);
            losses.push(losses_of(folder)?);
            step_ms.push(series.measured().step_times_ms().collect::<Vec<f64>>());
            injected.extend(record.injected().map(str::to_owned));
            tokens_per_step = series.tokens as f64 / series.recorded.max(1) as f64;
            last = Some(record);
        }
        let record = last.ok_or_else(|| Error::Usage("no repeats".to_owned()))?;
        let rate = |steps: &[f64]| {
            tokens_per_step * steps.len() as f64 / (steps.iter().sum::<f64>() / 1e3)
        };
        Ok(Self {
            workload: record.workload.name,
            workload_id: record.workload.id,
            world: record.ranks.len(),
            tokens_per_second: Interval::of(&step_ms, rate),
            step_ms_median: Interval::of(&step_ms, |steps| quantile(steps, 50.0)),
            step_ms_p95: Interval::of(&step_ms, |steps| quantile(steps, 95.0)),
            is_steady: repeats.iter().all(|repeat| repeat.is_done(wanted_steps)),
            warnings: warnings(&repeats, &losses, wanted_steps)
                .into_iter()
                .chain(injected_warning(injected.iter().map(String::as_str)))
                .collect(),
            wanted_steps,
            repeats,
        })
    }
}

impl Repeat {
    fn of(folder: &Path, record: &Record) -> Result<Self> {
        let missing = || record::Error::NoRecord { path: Record::path(folder) };
        let steps = record.steps.as_ref().ok_or_else(missing)?;
        let rates = record.tokens_per_second.ok_or_else(missing)?;
        let fingerprint = record.fingerprint.as_ref().ok_or_else(missing)?;
        Ok(Self {
            folder: folder.to_string_lossy().into_owned(),
            warmup_steps: steps.warmup,
            measured_steps: steps.measured,
            is_steady: steps.is_steady,
            tokens_per_second: rates.step.total,
            step_ms_median: steps.step_ms.median,
            losses: fingerprint.losses.clone(),
        })
    }

    fn is_done(&self, wanted_steps: u64) -> bool {
        self.is_steady && self.measured_steps >= wanted_steps
    }
}

/// Reads the bits of each step's loss.
fn losses_of(folder: &Path) -> Result<Vec<u64>> {
    let lines = record::read_steps(&record::steps_path(folder, 0))?;
    lines.map(|line| Ok(line?.sample.loss.to_bits())).collect()
}

/// Returns whether two repeats have the same losses, in the steps that both have.
fn are_same(one: &[u64], other: &[u64]) -> bool {
    let common = one.len().min(other.len());
    one[..common] == other[..common]
}

fn quantile(steps: &[f64], percent: f64) -> f64 {
    let mut sorted = steps.to_vec();
    sorted.sort_by(f64::total_cmp);
    percentile(&sorted, percent).unwrap_or(f64::NAN)
}

fn warnings(repeats: &[Repeat], losses: &[Vec<u64>], wanted_steps: u64) -> Vec<String> {
    let mut warnings = Vec::new();
    let numbers = |is_such: &dyn Fn(&Repeat) -> bool| -> Vec<String> {
        let such = repeats.iter().enumerate().filter(|(_, repeat)| is_such(repeat));
        such.map(|(number, _)| (number + 1).to_string()).collect()
    };
    let unsteady = numbers(&|repeat| !repeat.is_steady);
    if !unsteady.is_empty() {
        let which = unsteady.join(", ");
        warnings.push(format!(
            "step times did not settle in repeat {which}: the machine changes, or there are too \
             few steps to tell"
        ));
    }
    let short = numbers(&|repeat| repeat.measured_steps < wanted_steps);
    if !short.is_empty() {
        let which = short.join(", ");
        let text = format!("fewer than {wanted_steps} steps after the warm-up in repeat {which}");
        warnings.push(text);
    }
    if losses.iter().any(|of_repeat| !are_same(of_repeat, &losses[0])) {
        warnings.push("repeats have different losses: they did not compute the same".to_owned());
    }
    warnings
}

impl fmt::Display for Bench {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, workload_id, world, .. } = self;
        let ranks = number_format::count(*world, "rank");
        writeln!(formatter, "{workload} ({workload_id}) on {ranks}\n")?;
        write_table(formatter, &self.table())?;
        writeln!(formatter)?;
        let figures = [
            ("tokens/s", self.tokens_per_second),
            ("step median ms", self.step_ms_median),
            ("step p95 ms", self.step_ms_p95),
        ];
        for (name, figure) in figures {
            let Some(Interval { estimate, low, high }) = figure else { continue };
            let shown = |value: f64| match name {
                "tokens/s" => number_format::thousands(value),
                _ => number_format::milliseconds(value),
            };
            write!(formatter, "{name:<15} {}", shown(estimate))?;
            if let (Some(low), Some(high)) = (low, high) {
                write!(formatter, " [{}, {}]", shown(low), shown(high))?;
            }
            writeln!(formatter)?;
        }
        if self.is_steady {
            let wanted = self.wanted_steps;
            writeln!(formatter, "Step times had settled, for at least {wanted} steps a repeat.")?;
        }
        for warning in &self.warnings {
            writeln!(formatter, "warning: {warning}")?;
        }
        match self.repeats.len() {
            1 => write!(formatter, "One repeat has no interval."),
            _ => write!(formatter, "Intervals are of 95 %, and of this job only."),
        }
    }
}

impl Bench {
    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN).force_no_tty();
        let names = ["repeat", "warm-up", "measured", "steady", "tokens/s", "step ms"];
        table.set_header(names.map(right));
        for (number, repeat) in self.repeats.iter().enumerate() {
            table.add_row([
                right(number + 1),
                right(repeat.warmup_steps),
                right(repeat.measured_steps),
                right(if repeat.is_steady { "yes" } else { "no" }),
                right(number_format::thousands(repeat.tokens_per_second)),
                right(number_format::milliseconds(repeat.step_ms_median)),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(steps: &[f64]) -> f64 {
        steps[0]
    }

    /// Calculated by hand: the logarithms are 0 and 2, and the quantile of 1 degree of freedom
    /// 12.7062.
    #[test]
    fn an_interval_is_of_the_logarithms_of_repeats() {
        let found = Interval::of(&[vec![1.0, 9.0], vec![libm::exp(2.0)]], first).unwrap();
        let values = [Some(found.estimate), found.low, found.high];
        for (value, expected) in values.into_iter().zip([1.0, -11.7062, 13.7062]) {
            assert!((libm::log(value.unwrap()) - expected).abs() < 5e-4, "{found:?}");
        }
    }

    #[test]
    fn one_repeat_has_no_interval() {
        let found = Interval::of(&[vec![1.0; 50]], first);
        assert_eq!(found, Some(Interval { estimate: 1.0, low: None, high: None }));
        assert_eq!(Interval::of(&[vec![1.0], vec![]], first), None);
        assert_eq!(Interval::of(&[], first), None);
    }
}
