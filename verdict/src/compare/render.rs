//! A comparison as a page of 80 columns, and as Markdown.

use std::fmt;

use comfy_table::{Table, presets};

use super::comparison::{Comparison, MetricComparison, Missing};
use super::design::Method;
use super::estimate::Estimate;
use super::metric::PRIMARY;
use super::verdict::Verdict;
use crate::page::{COLUMNS, right, table, write_table};
use record::Clocks;
use record::text::number_format;

/// Maximum number of differences and parts that are shown.
const SHOWN_MAX: usize = 8;

impl fmt::Display for Comparison {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, workload_id, headline, .. } = self;
        for line in wrapped(&format!("{workload} ({workload_id}): {headline}")) {
            writeln!(formatter, "{line}")?;
        }
        writeln!(formatter)?;
        write_table(formatter, &self.metrics_table())?;
        for missing in &self.missing {
            writeln!(formatter, "{}: not compared: {}", missing.name, missing.text())?;
        }
        for line in self.attribution_lines() {
            writeln!(formatter, "{line}")?;
        }
        self.write_differences(formatter)?;
        write!(formatter, "\n{}", self.method_text())
    }
}

impl Comparison {
    /// Formats the verdict in one line, as in "better: tokens/s (step clock) +164.0 % [+95.0,
    /// +258.0] (10 pairs)", with the metrics that got worse but are not gated.
    pub(super) fn sentence(&self, decisive: &MetricComparison) -> String {
        let verdict = self.verdict.name();
        let figure = figure(decisive);
        let evidence = &self.evidence;
        let mut text = format!("{verdict}: {figure} ({evidence})");
        let is_worse = |metric: &&MetricComparison| metric.verdict == Verdict::Worse;
        let mut others = self.metrics.iter().filter(|metric| !metric.is_gated).filter(is_worse);
        let shown: Vec<String> = others.by_ref().take(WORSE_SHOWN_MAX).map(short_figure).collect();
        if !shown.is_empty() {
            text += &format!("; not gated: {}", shown.join(", "));
        }
        match others.count() {
            0 => text,
            more => text + &format!(" and {more} more"),
        }
    }

    fn metrics_table(&self) -> Table {
        let mut table = table(presets::ASCII_MARKDOWN);
        let names = ["metric", "base", "new", "change", "verdict"];
        table.set_header(names.map(right));
        for metric in &self.metrics {
            table.add_row([
                right(&metric.name),
                right(value(metric.base, metric.unit)),
                right(value(metric.new, metric.unit)),
                right(change(&metric.estimate)),
                right(verdict(metric)),
            ]);
        }
        table
    }

    fn attribution_lines(&self) -> Vec<String> {
        let Some(attribution) = &self.attribution else { return Vec::new() };
        let step_ms = attribution.step_ms;
        let mut lines = Vec::new();
        let parts = attribution.phases.iter().filter(|part| {
            part.added_ms * step_ms > 0.0 && (part.added_ms / step_ms) >= PART_SHOWN_MIN
        });
        lines.extend(parts.map(|part| {
            let share = number_format::percent(part.added_ms / step_ms);
            format!("  {} {:+.2} ms, {share} of it", part.phase.name(), part.added_ms)
        }));
        lines.extend(attribution.ranks.iter().take(SHOWN_MAX).map(|part| {
            let kind = part.kind.name();
            let held_down = match part.held_down.join(", ") {
                reasons if reasons.is_empty() => reasons,
                reasons => format!(";\n    the clocks of its GPU were held down: {reasons}"),
            };
            format!(
                "  rank {} on {}, {kind}: its own time {:+.2} ms, the median rank's {:+.2} \
                 ms{held_down}",
                part.rank, part.host, part.added_ms, part.others_added_ms
            )
        }));
        if !lines.is_empty() {
            lines.insert(0, format!("\nA step takes {step_ms:+.2} ms:"));
        }
        lines
    }

    fn write_differences(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.differences.is_empty() {
            return writeln!(formatter, "\nNothing else differs.");
        }
        writeln!(formatter, "\nWhat else differs:")?;
        for difference in &self.differences {
            let shown = |values: &[String]| match values {
                [] => "none".to_owned(),
                values => values.join(", "),
            };
            let (base, new) = (shown(&difference.base), shown(&difference.new));
            writeln!(formatter, "  {}: {base} -> {new}", difference.name)?;
        }
        Ok(())
    }

    fn method_text(&self) -> String {
        let mut text = match self.evidence.method {
            Method::Pairs => "Intervals are of runs in pairs, one of each side in turn.",
            Method::Sessions => "Intervals are of sessions at least an hour apart.",
            Method::Assumed => {
                "Intervals are of a deviation between sessions that is assumed, not seen here.\n\
                 hint: `yardstick compare --run` takes turns; a baseline of 3 sessions measures it"
            }
        }
        .to_owned();
        for record in self.evidence.not_steady.iter().take(SHOWN_MAX) {
            text += &format!("\n{record}: step times had not settled");
        }
        text
    }
}

impl Missing {
    fn text(&self) -> String {
        match &self.records[..] {
            [one] => format!("{one} has none"),
            [first, others @ ..] => {
                let others = number_format::count(others.len(), "other");
                format!("{first} and {others} have none")
            }
            [] => String::new(),
        }
    }
}

/// Maximum number of metrics in the headline that got worse but are not gated.
const WORSE_SHOWN_MAX: usize = 3;

/// Minimum share of the difference of a part that is shown.
const PART_SHOWN_MIN: f64 = 0.05;

fn value(value: f64, unit: &str) -> String {
    match unit {
        "B" | "B/s" => number_format::scaled(value, unit),
        "tokens/s" => number_format::thousands(value),
        _ => format!("{value:.2}"),
    }
}

/// Formats a metric, as in "tokens/s (step clock) +5.1 % [+4.0, +6.2]".
fn figure(metric: &MetricComparison) -> String {
    format!("{} {}", label(metric), change(&metric.estimate))
}

fn short_figure(metric: &MetricComparison) -> String {
    format!("{} {:+.1} %", label(metric), 100.0 * metric.estimate.effect)
}

fn label(metric: &MetricComparison) -> &str {
    if metric.name == PRIMARY { Clocks::STEP_RATE } else { &metric.name }
}

/// Formats a change, as in "+5.1 % [+4.0, +6.2]".
fn change(estimate: &Estimate) -> String {
    let Estimate { effect, low, high } = estimate;
    if low.is_infinite() {
        return format!("{:+.1} % [unknown]", 100.0 * effect);
    }
    format!("{:+.1} % [{:+.1}, {:+.1}]", 100.0 * effect, 100.0 * low, 100.0 * high)
}

/// Formats a verdict. Worse is in capitals if it decides, and otherwise marked as not deciding.
fn verdict(metric: &MetricComparison) -> String {
    let name = metric.verdict.name();
    match metric.verdict {
        Verdict::Worse if metric.is_gated => name.to_uppercase(),
        Verdict::Worse => "not gated".to_owned(),
        _ => name.to_owned(),
    }
}

/// Wraps a text to lines of at most 80 columns.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always one");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= usize::from(COLUMNS) {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(format!("  {word}"));
        }
    }
    lines
}
