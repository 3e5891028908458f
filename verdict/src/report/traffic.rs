//! Traffic over each dimension of ranks, as rows that text, HTML and Markdown share.

use record::text::number_format::{milliseconds, percent, scaled, thousands};
use record::{DimensionTraffic, Record};

/// Headings of the columns, whose figures are those of a rank and a step.
pub(super) const HEADINGS: [&str; 7] =
    ["dimension", "operation", "count", "sent", "hidden", "exposed", "busbw"];

/// Returns whether a column is of numbers.
pub(super) fn is_number(column: usize) -> bool {
    column > 1
}

/// Builds the rows; none for ranks in one dimension that hold all weights, whose traffic the rest
/// of the report covers.
pub(super) fn rows(record: &Record) -> Vec<[String; HEADINGS.len()]> {
    let traffic = record.collectives.as_ref().map_or(&[][..], |figures| &figures.traffic);
    let first = traffic.first().map(|row| &row.dimension);
    let has_dimensions = traffic.iter().any(|row| Some(&row.dimension) != first);
    let shards_weights = record.sharded_in_effect() == "weights";
    match has_dimensions || shards_weights {
        true => traffic.iter().map(row).collect(),
        false => Vec::new(),
    }
}

fn row(traffic: &DimensionTraffic) -> [String; HEADINGS.len()] {
    let hidden = traffic.hidden_ms / traffic.total_ms.max(1e-9);
    [
        format!("{} {}", traffic.dimension, traffic.ranks),
        traffic.operation.clone(),
        thousands(traffic.operations_per_step),
        scaled(traffic.bytes_per_step, "B"),
        percent(hidden),
        format!("{} ms", milliseconds(traffic.exposed_ms)),
        scaled(traffic.busbw_bytes_per_second, "B/s"),
    ]
}
