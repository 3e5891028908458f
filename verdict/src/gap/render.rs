//! The gap of a step in at most ten rows.

use std::collections::BTreeSet;
use std::fmt;

use super::accounting::{Gap, GapRow};
use super::bound::BoundBy;
use super::communication::BucketGap;
use record::WeightShape;
use record::phase::Phase;
use record::text::number_format::{count, scaled};

/// Maximum number of rows, the last of which sums up all others.
const ROWS_MAX: usize = 10;

/// Smallest gap that has a row of its own.
const SHOWN_MS_MIN: f64 = 0.001;

impl fmt::Display for Gap {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, workload_id, step, step_ms, rows, .. } = self;
        write!(formatter, "{workload} ({workload_id}), step {step} on rank 0: {step_ms:.2} ms")?;
        match (self.bound_ms, self.gap_ms) {
            (Some(bound), Some(gap)) => {
                writeln!(formatter, " = {bound:.2} by measured rates + {gap:.2} gap")?;
            }
            _ => writeln!(formatter, "; the gap is null")?,
        }
        let shown = rows.iter().take_while(|row| row.unexplained_ms() >= SHOWN_MS_MIN).count();
        let shown = if shown > ROWS_MAX { ROWS_MAX - 1 } else { shown };
        for row in &rows[..shown] {
            let gap = row.gap_ms.map_or("null".to_owned(), |gap| format!("{gap:.2}"));
            let (phase, ms, detail) = (row.phase.name(), row.ms, self.detail(row));
            writeln!(formatter, "{phase:>12} {gap:>9} of {ms:>9.2} ms: {detail}")?;
        }
        let others = &rows[shown..];
        if !others.is_empty() {
            let known: f64 = others.iter().filter_map(|row| row.gap_ms).sum();
            let ms: f64 = others.iter().map(|row| row.ms).sum();
            let others = count(others.len(), "smaller gap");
            writeln!(formatter, "{:>12} {known:>9.2} of {ms:>9.2} ms: {others}", "rest")?;
        }
        let reasons: BTreeSet<&str> = rows.iter().filter_map(|row| row.reason.as_deref()).collect();
        reasons.iter().try_for_each(|reason| write!(formatter, "\nnull: {reason}"))
    }
}

impl Gap {
    /// Describes a row, as in "mlp_up dW, 384x1536, at 71 % of the matmul rate".
    fn detail(&self, row: &GapRow) -> String {
        let weight = row.weight.map_or(String::new(), |WeightShape { inputs, outputs }| {
            format!(", {inputs}x{outputs}")
        });
        let percent = row.bound_ms.map_or(0.0, |bound| 100.0 * bound / row.ms);
        let bound = match row.bound_by {
            Some(BoundBy::Matmul) => format!(", at {percent:.0} % of the matmul rate"),
            Some(BoundBy::Memory) => format!(", at {percent:.0} % of the memory rate"),
            Some(BoundBy::Caches) => ", faster than memory".to_owned(),
            Some(BoundBy::Links | BoundBy::Nothing) | None => String::new(),
        };
        let bucket = if row.phase == Phase::CommExposed { self.slowest_bucket() } else { None };
        format!("{}{weight}{bound}{}", row.name, bucket.unwrap_or_default())
    }

    /// Names the buckets that take the most time above their bounds.
    fn slowest_bucket(&self) -> Option<String> {
        let above_ms =
            |bucket: &BucketGap| bucket.operations_per_step * (bucket.mean_ms - bucket.bound_ms);
        let slowest = self.buckets.iter().max_by(|a, b| above_ms(a).total_cmp(&above_ms(b)))?;
        let BucketGap { operation, bytes, mean_ms, bound_ms, .. } = slowest;
        let (bytes, percent) = (scaled(*bytes as f64, "B"), 100.0 * bound_ms / mean_ms);
        Some(format!("; {operation} of {bytes} at {percent:.0} % of the measured links"))
    }
}
