//! The report as Markdown, for a pull request.

use std::fmt::Write as _;

use super::facts::{Fact, Utilization, facts, status, utilizations, with_power_cap};
use super::{ReportData, hardware, traffic};
use record::phase::Phase;
use record::text::number_format;
use record::{Clocks, Record};

/// Formats main figures, phases and warnings.
pub(super) fn page(report: &ReportData) -> String {
    let record = &report.record;
    let workload = &record.workload;
    let ranks = number_format::count(report.world, "rank");
    let name = plain(&workload.name);
    let mut text = format!("### {name} (`{}`): {} on {ranks}\n\n", workload.id, report.state);
    text += "| figure | value |\n| --- | ---: |\n";
    let mut row = |name: &str, value: Option<String>| {
        let value = value.unwrap_or_else(|| "null".to_owned());
        let _ = writeln!(text, "| {name} | {} |", cell(&value));
    };
    row("status", Some(status(report)));
    let rate = record.tokens_per_second;
    row(Clocks::STEP_RATE, rate.map(|rate| number_format::thousands(rate.step.total)));
    row(Clocks::WALL_RATE, rate.map(|rate| number_format::thousands(rate.wall.total)));
    let steps = record.steps.as_ref();
    row("step ms, median", steps.map(|it| number_format::milliseconds(it.step_ms.median)));
    row("step ms, p95", steps.map(|it| number_format::milliseconds(it.step_ms.p95)));
    for Utilization { name, of, causal, .. } in utilizations(record) {
        let share = with_power_cap(number_format::percent(causal), record);
        row(&format!("{name}, causal, of the {of}"), Some(share));
    }
    row("loss", steps.and_then(|it| it.loss_last).map(|loss| format!("{loss:.4}")));
    row("goodput", record.goodput.map(|goodput| number_format::percent(goodput.share)));
    for (name, text) in [("GPUs", hardware::gpus(record)), ("cost", hardware::cost(record))] {
        if text.is_some() {
            row(name, text);
        }
    }
    for Fact { name, value } in facts(report) {
        row(name, Some(value));
    }
    if let Some(phases) = record.phases {
        text += "\n| phase | share of wall time |\n| --- | ---: |\n";
        for phase in Phase::ALL {
            let share = phases.get(phase).share;
            if share > 0.0 {
                let share = number_format::percent(share);
                let _ = writeln!(text, "| {} | {share} |", phase.name());
            }
        }
    }
    text += &dimensions(record);
    if !report.warnings.is_empty() {
        text += "\nWarnings:\n\n";
    }
    for warning in &report.warnings {
        let _ = writeln!(text, "- {}", plain(warning));
    }
    text
}

/// Builds the table of traffic over several dimensions.
fn dimensions(record: &Record) -> String {
    let rows = traffic::rows(record);
    if rows.is_empty() {
        return String::new();
    }
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let ruler = |column| if traffic::is_number(column) { "---:" } else { "---" }.to_owned();
    let mut text = format!("\n{}", line(&traffic::HEADINGS.map(str::to_owned)));
    text += &line(&std::array::from_fn::<_, { traffic::HEADINGS.len() }, _>(ruler));
    rows.iter().for_each(|row| text += &line(row));
    text
}

/// Formats text in one line, without tags.
fn plain(text: &str) -> String {
    text.replace(['\n', '\r'], " ").replace('<', "&lt;")
}

/// Escapes text so that it does not end a cell of a table.
pub(super) fn cell(text: &str) -> String {
    plain(text).replace('\\', "\\\\").replace('|', "\\|")
}
