//! Charts of all time since the first start: attempts one below the other, and goodput.

use super::canvas::{Axis, Chart, Ink};
use super::charts::short;
use super::figure::{Figure, arranged};
use record::text::number_format;
use record::{Attempt, Goodput, Record, Status};

/// Draws the charts of time that the record has figures for.
pub(super) fn all(record: &Record) -> String {
    let goodput = record.goodput.as_ref().map(goodput);
    arranged([goodput, attempts(record)].into_iter().flatten())
}

/// Minimum share of a part that is visible.
const VISIBLE_SHARE_MIN: f64 = 0.002;

fn goodput(goodput: &Goodput) -> Figure<'_> {
    let parts = [
        ("training", goodput.training_seconds),
        ("data", goodput.data_seconds),
        ("checkpoints", goodput.checkpoint_seconds),
        ("evaluation", goodput.evaluation_seconds),
        ("starts", goodput.start_seconds),
        ("restoring", goodput.restore_seconds),
        ("repeated and down", goodput.repeated_seconds + goodput.down_seconds),
        ("other", goodput.other_seconds),
    ];
    let share = number_format::percent(goodput.share);
    let caption = format!("{share} of the time since the first start was training that was kept.");
    let chart = Chart {
        title: "Goodput".into(),
        caption: caption.into(),
        x: Axis { label: "s", range: 0.0..goodput.elapsed_seconds, format: short },
        y: Axis { label: "run", range: 0.0..1.0, format: |_| String::new() },
    };
    let inks = (0..).map(Ink::Series);
    let is_visible = |time: f64| time > VISIBLE_SHARE_MIN * goodput.elapsed_seconds;
    let shown: Vec<_> = parts.into_iter().zip(inks).filter(|it| is_visible(it.0.1)).collect();
    let text = |name: &str, time: f64| format!("{name} {} s", short(time));
    let legend: Vec<_> =
        shown.iter().map(|((name, time), ink)| (text(name, *time), *ink)).collect();
    let figure = Figure::new(chart, move |canvas| {
        let mut left = 0.0;
        for ((name, time), ink) in &shown {
            let corners = [(left, 0.15), (left + time, 0.85)];
            canvas.bar(corners, *ink, 1.0);
            canvas.hover(corners, &text(name, *time));
            left += time;
        }
    });
    figure.with_legend(legend)
}

fn attempts(record: &Record) -> Option<Figure<'_>> {
    let start = record.attempts.first()?.started_unix_ms;
    let since_start = move |unix_ms: u64| unix_ms.saturating_sub(start) as f64 / 1e3;
    let end_of = move |attempt: &Attempt| {
        since_start(attempt.ended_unix_ms.unwrap_or(attempt.started_unix_ms))
    };
    let end = record.attempts.iter().map(end_of).fold(1e-3, f64::max);
    let count = record.attempts.len() as f64;
    let chart = Chart {
        title: "Attempts".into(),
        caption: "From start to end of each, with the steps that it made.".into(),
        x: Axis { label: "s", range: 0.0..end, format: short },
        y: Axis { label: "attempt", range: -0.5..count - 0.5, format: |_| String::new() },
    };
    let legend = [("ended in order", Ink::Series(2)), ("failed", Ink::Series(3))];
    let figure = Figure::new(chart, move |canvas| {
        for (row, attempt) in record.attempts.iter().rev().enumerate() {
            let row = row as f64;
            let left = since_start(attempt.started_unix_ms);
            let is_failure = attempt.status == Status::Failed;
            let ink = if is_failure { Ink::Series(3) } else { Ink::Series(2) };
            let corners = [(left, row - 0.3), (end_of(attempt), row + 0.1)];
            canvas.bar(corners, ink, 1.0);
            let first = attempt.resumed_after_step.map_or(0, |step| step) + 1;
            let (number, last) = (attempt.number, attempt.last_step);
            let text = format!("{number}: steps {first} to {last}, {}", attempt.status.name());
            let seconds = short(end_of(attempt) - left);
            canvas.hover(corners, &format!("{text}\n{seconds} s"));
            canvas.text((left.min(0.6 * end), row + 0.4), text);
        }
    });
    Some(figure.with_legend(legend))
}
