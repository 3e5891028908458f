//! Breakdown of step time: shares of all measured steps, and phases over steps.

use std::fmt::Write as _;

use super::canvas::{Axis, Chart, Ink};
use super::charts::{end_of, from_zero, name_of, short, steps_axis};
use super::escape;
use super::figure::{Figure, arranged, legend};
use record::phase::Phase;
use record::text::number_format::{milliseconds, percent};
use record::{Record, StepBlock, StepsSummary};

/// Share of bars that are shown whole, so that a few long steps do not flatten the others.
const WHOLE_SHARE: f64 = 0.99;

/// Draws the bar of shares, and the chart; nothing without measured steps.
pub(super) fn all(record: &Record) -> String {
    let chart = record.steps.as_ref().and_then(over_steps);
    shares(record).unwrap_or_default() + &arranged(chart)
}

/// Lists phases that take any time, with their colours, which are the same everywhere.
fn shown(takes_time: impl Fn(Phase) -> bool) -> Vec<(Phase, Ink)> {
    let inks = (0..).map(Ink::Series);
    Phase::ALL.into_iter().zip(inks).filter(|(phase, _)| takes_time(*phase)).collect()
}

fn shares(record: &Record) -> Option<String> {
    let phases = record.phases?;
    let measured = record.steps.as_ref()?.measured.max(1) as f64;
    let shown = shown(|phase| phases.get(phase).share > 0.0);
    let mut bar = String::new();
    let mut names = Vec::new();
    for (phase, ink) in shown {
        let summary = phases.get(phase);
        let (name, share) = (phase.name(), percent(summary.share));
        let ms = milliseconds(1e3 * summary.seconds / measured);
        let (width, colour) = (100.0 * summary.share, ink.variable());
        let _ = write!(
            bar,
            "<i style=\"width:{width:.3}%;background:{colour}\" \
             title=\"{name}: {share}, {ms} ms per step\"></i>"
        );
        names.push((format!("{name} {share} ({ms} ms)"), ink));
    }
    let names = legend(names);
    let caption = escape(
        "Share of the wall time of measured steps, and the mean of a step, on rank 0. All phases \
         together are all of the time.",
    );
    Some(format!(
        "<figure class=\"wide\"><h3>Shares of phases</h3>\n<div class=\"shares\">{bar}</div>\n\
         {names}<figcaption>{caption}</figcaption></figure>\n"
    ))
}

fn over_steps(steps: &StepsSummary) -> Option<Figure<'_>> {
    let series = || steps.series.iter().filter(|block| block.steps > 0);
    let mut totals: Vec<f64> = series().map(total_ms).collect();
    totals.sort_by(f64::total_cmp);
    // Not interpolated: among fewer than 100 bars, the longest must not raise the limit.
    let last_whole = (WHOLE_SHARE * totals.len().checked_sub(1)? as f64) as usize;
    let top = from_zero([totals[last_whole]]);
    let cut = totals.iter().filter(|total| **total > top.end).count();
    let mut caption = "Time of a step by phase on rank 0.".to_owned();
    if cut > 0 {
        let (limit, longest) = (milliseconds(top.end), milliseconds(*totals.last()?));
        let bars = totals.len();
        let _ = write!(
            caption,
            " Cut off at {limit} ms, which {cut} of {bars} bars exceed; the longest has {longest} \
             ms."
        );
    }
    let chart = Chart {
        title: "Phases over steps".into(),
        caption: caption.into(),
        x: steps_axis(&steps.series)?,
        y: Axis { label: "ms per step", range: top.clone(), format: short },
    };
    let shown = shown(|phase| steps.series.iter().any(|block| block.phases_ns.get(phase) > 0));
    let names: Vec<_> = shown.iter().map(|(phase, ink)| (phase.name(), *ink)).collect();
    let figure = Figure::new(chart, move |canvas| {
        for block in series() {
            let (left, right) = (block.first_step as f64 - 1.0, end_of(block));
            let mut below = 0.0;
            let mut text = format!("{}: {} ms", name_of(block), milliseconds(total_ms(block)));
            for (phase, ink) in &shown {
                let height = ms(block, *phase);
                let above = (below + height).min(top.end);
                if above > below {
                    canvas.bar([(left, below), (right, above)], *ink, 1.0);
                }
                if height > 0.0 {
                    let _ = write!(text, "\n{} {}", phase.name(), milliseconds(height));
                }
                below = above;
            }
            canvas.hover_between(left..right, &text);
        }
    });
    Some(figure.with_legend(names).wide())
}

/// Mean time of a step of the block in a phase.
fn ms(block: &StepBlock, phase: Phase) -> f64 {
    block.phases_ns.get(phase) as f64 / 1e6 / block.steps as f64
}

fn total_ms(block: &StepBlock) -> f64 {
    Phase::ALL.into_iter().map(|phase| ms(block, phase)).sum()
}
