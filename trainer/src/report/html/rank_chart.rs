//! The heat map of ranks: which is slow, and since when.

use super::canvas::{Axis, Chart, Ink, figure};
use super::charts::whole;
use crate::number_format;
use crate::record::{OwnTimes, Record};

/// This much slower than the median rank has the full colour.
const FULL_COLOUR: f64 = 0.2;

/// Own times of all ranks relative to the median of each block of steps; nothing without several
/// ranks.
pub(super) fn heat_map(record: &Record) -> String {
    drawn(record).unwrap_or_default()
}

fn drawn(record: &Record) -> Option<String> {
    let times: Option<Vec<&OwnTimes>> =
        record.ranks.iter().map(|rank| rank.times.as_ref()).collect();
    let times = times.filter(|times| times.len() > 1)?;
    let starts = &times[0].first_steps;
    let end = record.attempts.last()?.last_step as f64 + 1.0;
    let first = *starts.first()? as f64;
    let ranks = times.len() as f64;
    let chart = Chart {
        title: "Own time of ranks",
        caption: "Blue is slower than the median rank at that time, orange faster; the full colour \
                  is 20 %. Waiting for other ranks is not counted.",
        x: Axis { label: "step", range: first..end, format: number_format::thousands },
        y: Axis { label: "rank", range: -0.5..ranks - 0.5, format: whole },
    };
    let drawn = figure(&chart, &[], |canvas| {
        for (block, start) in starts.iter().enumerate() {
            let right = starts.get(block + 1).map_or(end, |next| *next as f64);
            let own: Vec<f64> =
                times.iter().filter_map(|times| times.own_ms.get(block).copied()).collect();
            let median = median(&own);
            for (rank, own_ms) in own.iter().enumerate() {
                let excess = own_ms / median - 1.0;
                let ink = if excess >= 0.0 { Ink::Series(0) } else { Ink::Series(1) };
                let opacity = (excess.abs() / FULL_COLOUR).clamp(0.04, 1.0);
                let rank = rank as f64;
                let corners = [(*start as f64, rank - 0.46), (right, rank + 0.46)];
                canvas.bar(corners, ink, opacity);
            }
        }
    });
    Some(format!("<div class=\"wide half\">{drawn}</div>"))
}

/// The lower one of an even number, so that of two ranks the slow one is seen.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len().div_ceil(2) - 1]
}
