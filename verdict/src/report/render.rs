//! The report as a page of 80 columns, readable without colour.

use std::fmt;

use comfy_table::{Cell, Table, presets};

use super::facts::{Fact, Utilization, facts, status, utilizations, with_power_cap};
use super::transports::transports;
use super::{ReportData, Start, hardware, starts, traffic};
use crate::page::{right, table, write_table};
use record::phase::Phase;
use record::text::number_format;
use record::{CorruptionRecord, PromotedTo, Record, StepsSummary, TargetRecord};

const BAR_COLUMNS: usize = 32;

impl fmt::Display for ReportData {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        section(formatter, &self.header())?;
        let starts: Vec<_> = self.record.attempts.iter().map(Start::of).collect();
        section(formatter, &starts::table(&starts))?;
        if let Some(steps) = &self.record.steps {
            section(formatter, &speed(&self.record, steps))?;
            section(formatter, &phases(&self.record, steps))?;
        }
        if let Some(traffic) = dimensions(&self.record) {
            section(formatter, &traffic)?;
        }
        write_table(formatter, &self.warnings())
    }
}

fn section(formatter: &mut fmt::Formatter<'_>, table: &Table) -> fmt::Result {
    write_table(formatter, table)?;
    writeln!(formatter)
}

impl ReportData {
    /// Builds the header: status, workload, place, loss, efficiency and checkpoints, one line each.
    fn header(&self) -> Table {
        let record = &self.record;
        let mut table = table(presets::NOTHING);
        table.add_row([
            "workload".to_owned(),
            format!("{} ({})", record.workload.name, record.workload.id),
        ]);
        table.add_row(["status".to_owned(), status(self)]);
        for Fact { name, value } in facts(self) {
            table.add_row([name.to_owned(), value]);
        }
        table.add_row(["attempts".to_owned(), self.attempts()]);
        if let Some(steps) = &record.steps {
            table.add_row(["steps".to_owned(), step_counts(steps)]);
            table.add_row(["loss".to_owned(), loss(steps)]);
        }
        if let Some(target) = &record.target_loss {
            table.add_row(["target loss".to_owned(), target_loss(target)]);
        }
        for [name, value] in mfu(record) {
            table.add_row([name, value]);
        }
        if let Some(recovery) = record.attempts.last().and_then(|last| last.recovery.as_ref()) {
            table.add_row(["restored".to_owned(), recovery.to_string()]);
        }
        if let Some(checkpoints) = checkpoints(record) {
            table.add_row(["checkpoints".to_owned(), checkpoints]);
        }
        if let Some(communication) = communication(record) {
            table.add_row(["communication".to_owned(), communication]);
        }
        if let Some(transports) = transports(record) {
            table.add_row(["transports".to_owned(), transports]);
        }
        let lines = [
            ("GPUs", hardware::gpus(record)),
            ("hosts", hardware::hosts(record)),
            ("cost", hardware::cost(record)),
            ("bit checks", record.sdc.as_ref().map(CorruptionRecord::summary)),
        ];
        for (name, text) in lines {
            if let Some(text) = text {
                table.add_row([name, &text]);
            }
        }
        table
    }

    fn warnings(&self) -> Table {
        let mut table = table(presets::NOTHING);
        for warning in &self.warnings {
            table.add_row(["warning", warning]);
        }
        table
    }

    fn attempts(&self) -> String {
        let attempts = &self.record.attempts;
        let mut text = attempts.len().to_string();
        let resumed = attempts.last().and_then(|last| last.resumed_after_step);
        if let Some(step) = resumed.filter(|&step| step > 0) {
            text += &format!(", last resumed after step {step}");
        }
        if let Some(goodput) = self.record.goodput {
            let lost = number_format::count(goodput.lost_steps as usize, "step");
            let share = number_format::percent(goodput.share);
            text += &format!("; {lost} repeated; goodput {share}");
        }
        text
    }
}

fn step_counts(steps: &StepsSummary) -> String {
    let settled = if steps.is_steady { "steady" } else { "not steady" };
    format!(
        "{}, {} tokens; {} measured without warm-up, {settled}",
        number_format::thousands(steps.completed as f64),
        number_format::thousands(steps.tokens as f64),
        number_format::thousands(steps.measured as f64)
    )
}

fn loss(steps: &StepsSummary) -> String {
    let number =
        |value: Option<f64>| value.map_or("null".to_owned(), |value| format!("{value:.4}"));
    let mut text = format!("first {}, last {}", number(steps.loss_first), number(steps.loss_last));
    if steps.evaluation_loss_last.is_some() {
        text += &format!(", held-out {}", number(steps.evaluation_loss_last));
    }
    if steps.entropy_floor.is_some() {
        text += &format!("; entropy floor {}", number(steps.entropy_floor));
    }
    text
}

fn target_loss(target: &TargetRecord) -> String {
    let kind = if target.held_out { "held-out" } else { "of a step" };
    let reached = target.step.zip(target.seconds).map_or("not reached".to_owned(), |reached| {
        let (step, seconds) = reached;
        format!("reached at step {step} after {seconds:.1} s")
    });
    format!("{:.4} {kind}, {reached}", target.nats)
}

/// Lists every known utilization; `null` without any.
fn mfu(record: &Record) -> Vec<[String; 2]> {
    let known = utilizations(record);
    if known.is_empty() {
        return vec![["mfu_measured".to_owned(), "null".to_owned()]];
    }
    let rate = record.mfu_measured.map(|it| it.matmul_flops_per_second);
    let line = |it: &Utilization| {
        let [causal, full] = [it.causal, it.full].map(number_format::percent);
        let rate = rate.filter(|_| it.name == "mfu_measured");
        let of = rate.map_or_else(
            || format!("the {}", it.of),
            |rate| format!("{} per rank", number_format::scaled(rate, "FLOP/s")),
        );
        let text = format!("{causal} causal, {full} full, of {of}");
        [it.name.to_owned(), with_power_cap(text, record)]
    };
    known.iter().map(line).collect()
}

fn checkpoints(record: &Record) -> Option<String> {
    let checkpoints = record.checkpoints.as_ref()?;
    let mut lines = vec![format!(
        "{}{}{} of {} at {}, training stopped for {} ms each",
        checkpoints.count,
        and(checkpoints.failed as u64, "failed"),
        and(checkpoints.skipped as u64, "skipped"),
        number_format::scaled(checkpoints.bytes as f64, "B"),
        number_format::scaled(checkpoints.bytes_per_second, "B/s"),
        number_format::milliseconds(checkpoints.stall_ms.median)
    )];
    lines.extend(checkpoints.promoted.iter().map(promoted));
    Some(lines.join("\n"))
}

fn promoted(tier: &PromotedTo) -> String {
    let rate = tier
        .bytes_per_second
        .map_or(String::new(), |rate| format!(" at {}", number_format::scaled(rate, "B/s")));
    let newest = tier.last_step.map_or("none".to_owned(), |step| format!("step {step}"));
    let failures = match tier.failures {
        0 => String::new(),
        failures => format!("; {}", number_format::count(failures as usize, "failure")),
    };
    let dropped = and(tier.dropped, "overtaken");
    format!("{}{dropped} copied to {}{rate}, newest {newest}{failures}", tier.count, tier.tier)
}

/// Formats a count that is only worth naming if it is not zero.
fn and(count: u64, what: &str) -> String {
    if count == 0 { String::new() } else { format!(" and {count} {what}") }
}

fn communication(record: &Record) -> Option<String> {
    let collectives = record.collectives.as_ref()?;
    Some(format!(
        "{}, {} per step, {} hidden behind computation",
        collectives.backend,
        number_format::scaled(collectives.bytes_per_step, "B"),
        number_format::percent(collectives.hidden_share)
    ))
}

/// Builds times and rates without and with checkpoints and evaluation, one line each.
fn speed(record: &Record, steps: &StepsSummary) -> Table {
    let mut table = table(presets::ASCII_MARKDOWN);
    let names = ["clock", "median ms", "p5", "p95", "tokens/s", "tokens/s per rank"];
    table.set_header(names.map(right));
    let Some(rates) = record.tokens_per_second else { return table };
    let clocks = [("step", steps.step_ms, rates.step), ("wall", steps.wall_ms, rates.wall)];
    for (name, times, rate) in clocks {
        table.add_row([
            right(name),
            right(number_format::milliseconds(times.median)),
            right(number_format::milliseconds(times.p5)),
            right(number_format::milliseconds(times.p95)),
            right(number_format::thousands(rate.total)),
            right(number_format::thousands(rate.per_rank)),
        ]);
    }
    table
}

/// Builds the table of traffic over several dimensions.
fn dimensions(record: &Record) -> Option<Table> {
    let rows = traffic::rows(record);
    let mut table = table(presets::ASCII_MARKDOWN);
    table.set_header(traffic::HEADINGS.map(right));
    table.add_rows(rows.iter().map(|row| row.each_ref().map(right)));
    (!rows.is_empty()).then_some(table)
}

/// Breaks down the time of measured steps by phase. Uses means, which add up, unlike medians.
fn phases(record: &Record, steps: &StepsSummary) -> Table {
    let mut table = table(presets::ASCII_MARKDOWN);
    let bar_name = format!("{:BAR_COLUMNS$}", "share of wall time");
    table.set_header([right("phase"), right("mean ms"), right("share"), Cell::new(bar_name)]);
    let Some(phases) = record.phases else { return table };
    for phase in Phase::ALL {
        let summary = phases.get(phase);
        table.add_row([
            right(phase.name()),
            right(number_format::milliseconds(1e3 * summary.seconds / steps.measured as f64)),
            right(number_format::percent(summary.share)),
            Cell::new(number_format::bar(summary.share, BAR_COLUMNS)),
        ]);
    }
    table
}
