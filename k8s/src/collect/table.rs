//! Text format of a collection.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};

use super::{Collection, RunRow, Unreadable};
use record::text::number_format::{self, count};
use record::text::unix_time::minute;
use record::{Clocks, Status};
use verdict::report;

const HEADINGS: [&str; 9] = [
    "run",
    "last start (UTC)",
    "workload",
    "settings",
    "nodes",
    "ranks",
    "status",
    Clocks::STEP_RATE,
    "scaling efficiency",
];

/// Columns of numbers, except the status.
const NUMBERS: [usize; 4] = [4, 5, 7, 8];

impl fmt::Display for Collection {
    /// Writes a table, and a line for each run without a result.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN).force_no_tty();
        table.set_header(HEADINGS);
        table.add_rows(self.runs.iter().map(cells));
        for index in NUMBERS {
            let column = table.column_mut(index).expect("it has as many columns as headings");
            column.set_cell_alignment(CellAlignment::Right);
        }
        write!(f, "{table}")?;
        let without = self.runs.iter().filter(|run| run.status != Status::Complete);
        for RunRow { name, status, reason, is_newest, .. } in without {
            let older = if *is_newest { "" } else { " (there is a newer run)" };
            let reason = reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
            write!(f, "\n{name}: {}{older}{reason}", status.name())?;
        }
        for RunRow { name, injected, ranks, expected_ranks, .. } in &self.runs {
            if let Some(expected) = expected_ranks.filter(|expected| expected != ranks) {
                write!(f, "\n{name}: expected {}, found {ranks}", count(expected, "rank"))?;
            }
            if !injected.is_empty() {
                write!(f, "\n{name}: faults were injected: {}", injected.join(" "))?;
            }
        }
        for Unreadable { name, text, .. } in &self.unreadable {
            write!(f, "\n{name}: not readable: {text}")?;
        }
        for name in &self.missing {
            write!(f, "\n{name}: no record")?;
        }
        for RunRow { name, starts, .. } in &self.runs {
            if starts.iter().any(|start| start.pods.is_some()) {
                write!(f, "\n\n{name}:\n{}", report::starts(starts))?;
            }
        }
        Ok(())
    }
}

fn cells(run: &RunRow) -> [String; HEADINGS.len()] {
    let null = || "null".to_owned();
    [
        run.name.clone(),
        minute(run.started_unix_ms),
        format!("{} ({})", run.workload, run.workload_id),
        run.settings.join(" "),
        run.nodes.to_string(),
        run.ranks.to_string(),
        status(run),
        run.tokens_per_second.map_or_else(null, number_format::thousands),
        run.scaling_efficiency.map_or_else(null, number_format::percent),
    ]
}

fn status(run: &RunRow) -> String {
    let doubt = if run.is_steady == Some(false) { ", not steady" } else { "" };
    run.status.name().to_owned() + doubt
}
