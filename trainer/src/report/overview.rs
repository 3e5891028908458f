//! Several runs in one table, a row each.

use chrono::DateTime;
use comfy_table::{Table, presets};

use crate::number_format;
use crate::record::Record;

/// Names of the columns.
pub(super) const HEADINGS: [&str; 7] =
    ["run", "version", "ranks", "status", "tokens/s", "step ms", "mfu_measured"];

/// The main figures of a run.
#[derive(Debug, Clone)]
pub(super) struct Row([String; HEADINGS.len()]);

impl Row {
    pub(super) fn of(record: &Record) -> Self {
        let null = || "null".to_owned();
        let commit = record.environment.commit.as_deref().unwrap_or("unknown");
        let rate = record.tokens_per_second.map(|rate| rate.step.total);
        let step = record.steps.as_ref().map(|steps| steps.step_ms.median);
        let mfu = record.mfu_measured.map(|mfu| mfu.causal);
        let started = record.attempts.first().map_or(0, |attempt| attempt.started_unix_ms);
        Self([
            utc(started),
            commit.to_owned(),
            record.ranks.len().to_string(),
            record.status.name().to_owned(),
            rate.map_or_else(null, number_format::thousands),
            step.map_or_else(null, number_format::milliseconds),
            mfu.map_or_else(null, number_format::percent),
        ])
    }

    pub(super) fn cells(self) -> [String; HEADINGS.len()] {
        self.0
    }
}

/// Of runs, in the given order.
pub(super) fn table<'a>(records: impl Iterator<Item = &'a Record>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).force_no_tty();
    table.set_header(HEADINGS);
    for record in records {
        table.add_row(Row::of(record).cells());
    }
    table
}

/// As in "2026-11-24 08:30".
fn utc(unix_ms: u64) -> String {
    let time = DateTime::from_timestamp_millis(unix_ms as i64).unwrap_or_default();
    time.format("%Y-%m-%d %H:%M").to_string()
}
