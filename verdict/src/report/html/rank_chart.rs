//! The heat map of ranks: which ranks are slow, and since when.

use std::ops::Range;

use super::canvas::{Axis, Canvas, Chart, Ink};
use super::charts::whole;
use super::figure::{Figure, arranged};
use record::text::number_format::{self, milliseconds};
use record::{OwnTimes, Record};

/// Excess over the median rank from which the colour is full.
const FULL_COLOUR: f64 = 0.2;

/// Difference to the median rank below which there is no colour.
const NO_COLOUR: f64 = 0.01;

/// Maximum number of ranks that have hover texts each; with more ranks only the slowest has one.
const EACH_MAX: usize = 16;

/// Draws the own times of all ranks relative to the median of each block of steps; nothing without
/// several ranks.
pub(super) fn heat_map(record: &Record) -> String {
    arranged(drawn(record))
}

fn drawn(record: &Record) -> Option<Figure<'_>> {
    let times: Option<Vec<&OwnTimes>> =
        record.ranks.iter().map(|rank| rank.times.as_ref()).collect();
    let times = times.filter(|times| times.len() > 1)?;
    let starts = &times[0].first_steps;
    let end = record.attempts.last()?.last_step as f64 + 1.0;
    let first = *starts.first()? as f64;
    let ranks = times.len() as f64;
    let chart = Chart {
        title: "Own time of ranks".into(),
        caption: "Time of each rank for its own part of a step, relative to the median rank at \
                  that time. Waiting for other ranks is not counted."
            .into(),
        x: Axis { label: "step", range: first..end, format: number_format::thousands },
        y: Axis { label: "rank", range: -0.5..ranks - 0.5, format: whole },
    };
    let figure = Figure::new(chart, move |canvas| {
        for (block, start) in starts.iter().enumerate() {
            let right = starts.get(block + 1).map_or(end, |next| *next as f64);
            let interval = *start as f64..right;
            let Some(own) = OwnOfBlock::of(*start, &times, block) else { continue };
            draw_block(canvas, &interval, &own);
            if times.len() > EACH_MAX {
                canvas.hover_between(interval, &own.slowest_text());
            }
        }
    });
    let percent = 100.0 * FULL_COLOUR;
    let scale = ["faster", "slower"].map(|which| format!("{percent:.0} % {which} or more"));
    Some(figure.with_scale(&scale[0], &scale[1]).wide())
}

/// Own times of ranks in a block of steps.
struct OwnOfBlock {
    first_step: u64,
    /// Ranks from the fastest to the slowest.
    ranks: Vec<OwnOfRank>,
}

struct OwnOfRank {
    rank: usize,
    ms: f64,
    /// Share by which it is slower than the median rank.
    excess: f64,
}

impl OwnOfBlock {
    /// Collects the own times of a block; `None` if no rank has one.
    fn of(first_step: u64, times: &[&OwnTimes], block: usize) -> Option<Self> {
        let known = times.iter().enumerate();
        let known = known.filter_map(|(rank, times)| Some((rank, *times.own_ms.get(block)?)));
        let mut known: Vec<_> = known.collect();
        known.sort_by(|a, b| a.1.total_cmp(&b.1));
        let median = known.get(known.len().div_ceil(2).checked_sub(1)?)?.1;
        let own = |(rank, ms): (usize, f64)| OwnOfRank { rank, ms, excess: ms / median - 1.0 };
        Some(Self { first_step, ranks: known.into_iter().map(own).collect() })
    }

    fn text(&self, own: &OwnOfRank) -> String {
        let (rank, step) = (own.rank, self.first_step);
        let (own_ms, percent) = (milliseconds(own.ms), 100.0 * own.excess);
        format!("rank {rank} from step {step}: {own_ms} ms\n{percent:+.1} % to the median rank")
    }

    fn slowest_text(&self) -> String {
        let slowest = self.ranks.last();
        slowest.map_or(String::new(), |own| format!("the slowest is {}", self.text(own)))
    }
}

/// Draws a cell for each rank that differs from the median rank, at least a pixel high. The slowest
/// is drawn last, so that it is visible where cells overlap.
fn draw_block(canvas: &mut Canvas<'_, '_>, steps: &Range<f64>, block: &OwnOfBlock) {
    let half = (0.75 * canvas.pixel_height()).max(0.46);
    for own in &block.ranks {
        let row = own.rank as f64;
        let corners = [(steps.start, row - half), (steps.end, row + half)];
        if own.excess.abs() >= NO_COLOUR {
            let ink = if own.excess > 0.0 { Ink::Warm } else { Ink::Cool };
            canvas.bar(corners, ink, (own.excess.abs() / FULL_COLOUR).min(1.0));
        }
        if block.ranks.len() <= EACH_MAX {
            canvas.hover(corners, &block.text(own));
        }
    }
}
