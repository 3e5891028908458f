//! Table of several runs, one row each.

use comfy_table::{CellAlignment, Table, presets};

use super::markdown::cell;
use super::{ReportData, facts, workload};
use record::Clocks;
use record::text::number_format;

/// Names of the columns.
pub(super) const HEADINGS: [&str; 11] = [
    "run",
    "workload",
    "model",
    "ranks",
    "started (UTC)",
    "status",
    Clocks::STEP_RATE,
    "step ms",
    "FLOP/s per rank",
    "MFU, causal",
    "commit",
];

/// Returns whether a column has numbers.
pub(super) fn is_number(column: usize) -> bool {
    [3, 6, 7, 8].contains(&column)
}

/// Main figures of a run.
#[derive(Debug, Clone)]
pub(super) struct Row([String; HEADINGS.len()]);

impl Row {
    pub(super) fn of(report: &ReportData) -> Self {
        let ReportData { record, state, folder, world, .. } = report;
        let null = || "null".to_owned();
        let is_injected = record.injected().next().is_some();
        let is_unsteady = record.steps.as_ref().is_some_and(|steps| !steps.is_steady);
        let doubts = [(is_unsteady, ", not steady"), (is_injected, ", faults injected")];
        let doubts = doubts.into_iter().filter_map(|(is, text)| is.then_some(text));
        let status = doubts.fold((*state).to_owned(), |status, doubt| status + doubt);
        let rate = record.result_rate();
        let step = rate.and(record.steps.as_ref()).map(|steps| steps.step_ms.median);
        let flops = rate.and(record.rank_flops_per_second);
        let flops = flops.map(|rate| number_format::scaled(rate.causal, "FLOP/s"));
        let mfu = rate.and_then(|_| facts::utilizations(record).into_iter().next());
        let mfu = mfu.map(|it| format!("{} of the {}", number_format::percent(it.causal), it.of));
        let mfu = mfu.map(|text| facts::with_power_cap(text, record));
        Self([
            folder.clone().unwrap_or_else(null),
            format!("{} ({})", record.workload.name, record.workload.id),
            workload::short_model(record).unwrap_or_else(null),
            world.to_string(),
            facts::started(record).unwrap_or_else(null),
            status,
            rate.map_or_else(null, number_format::thousands),
            step.map_or_else(null, number_format::milliseconds),
            flops.unwrap_or_else(null),
            mfu.unwrap_or_else(null),
            record.environment.commit.clone().unwrap_or_else(null),
        ])
    }

    pub(super) fn cells(self) -> [String; HEADINGS.len()] {
        self.0
    }
}

/// Builds the table of runs in the given order, which is Markdown too.
pub(super) fn table(reports: &[ReportData]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).force_no_tty();
    table.set_header(HEADINGS);
    for report in reports {
        table.add_row(Row::of(report).cells().map(|text| cell(&text)));
    }
    for index in (0..HEADINGS.len()).filter(|index| is_number(*index)) {
        let column = table.column_mut(index).expect("it has as many columns as headings");
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
