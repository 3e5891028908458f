//! A run beside published figures, as a page of 80 columns.

use std::fmt;

use comfy_table::{Table, presets};

use super::PREFIX;
use super::comparison::{PublishedComparison, PublishedFigure, RowComparison};
use super::conditions::Condition;
use crate::page::{right, write_table};
use record::text::number_format::{percent, scaled, thousands};

impl fmt::Display for PublishedComparison {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, workload, workload_id, rows, .. } = self;
        writeln!(formatter, "{workload} ({workload_id}) beside {PREFIX}{key}")?;
        for row in rows {
            let RowComparison { source, version, note, figures, conditions } = row;
            writeln!(formatter, "\n{source}, {version}:")?;
            write_table(formatter, &table(figures))?;
            for condition in conditions.iter().filter(|condition| condition.differs) {
                writeln!(formatter, "{condition}")?;
            }
            if let Some(note) = note {
                writeln!(formatter, "  note: {note}")?;
            }
        }
        formatter.write_str(
            "\nNo verdict: published figures are of other machines and programs, and have no\n\
             interval.",
        )
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<String>| value.clone().unwrap_or("not stated".to_owned());
        let (published, run) = (shown(&self.published), shown(&self.run));
        write!(formatter, "  {}: {published} -> {run}", self.name)
    }
}

fn table(figures: &[PublishedFigure]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).force_no_tty();
    table.set_header(["of one device", "published", "this run", "ratio"].map(right));
    for figure in figures {
        let value = |value: f64| match figure.name {
            "mfu" => percent(value),
            "model_flops_per_second" => scaled(value, "FLOP/s"),
            _ => thousands(value),
        };
        table.add_row([
            right(name(figure)),
            right(value(figure.published)),
            right(figure.run.map_or("null".to_owned(), value)),
            right(figure.ratio.map_or("null".to_owned(), |ratio| format!("{ratio:.3}"))),
        ]);
    }
    table
}

/// Names a figure with its convention.
fn name(figure: &PublishedFigure) -> String {
    let name = match figure.name {
        "mfu" => "MFU",
        "model_flops_per_second" => "model rate",
        _ => "tokens/s",
    };
    figure.convention.map_or(name.to_owned(), |convention| format!("{name}, {}", convention.name()))
}
