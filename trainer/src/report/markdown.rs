//! The report as Markdown, for a pull request.

use std::fmt::Write as _;

use super::{ReportData, hardware};
use crate::number_format;
use crate::timing::phase::Phase;

/// Main figures, phases and warnings.
pub(super) fn page(report: &ReportData) -> String {
    let record = &report.record;
    let workload = &record.workload;
    let ranks = number_format::count(report.world, "rank");
    let status = record.status.name();
    let mut text = format!("### {} (`{}`): {status} on {ranks}\n\n", workload.name, workload.id);
    text += "| figure | value |\n| --- | ---: |\n";
    let mut row = |name: &str, value: Option<String>| {
        let value = value.unwrap_or_else(|| "null".to_owned());
        let _ = writeln!(text, "| {name} | {value} |");
    };
    let rate = record.tokens_per_second;
    row("tokens/s", rate.map(|rate| number_format::thousands(rate.step.total)));
    let steps = record.steps.as_ref();
    row("step ms, median", steps.map(|it| number_format::milliseconds(it.step_ms.median)));
    row("step ms, p95", steps.map(|it| number_format::milliseconds(it.step_ms.p95)));
    row("mfu_measured, causal", record.mfu_measured.map(|mfu| number_format::percent(mfu.causal)));
    row("loss", steps.and_then(|it| it.loss_last).map(|loss| format!("{loss:.4}")));
    row("goodput", record.goodput.map(|goodput| number_format::percent(goodput.share)));
    for (name, text) in [("GPUs", hardware::gpus(record)), ("cost", hardware::cost(record))] {
        if text.is_some() {
            row(name, text);
        }
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
    if !report.warnings.is_empty() {
        text += "\nWarnings:\n\n";
    }
    for warning in &report.warnings {
        let _ = writeln!(text, "- {}", warning.replace('\n', " ").replace('<', "&lt;"));
    }
    text
}
