//! Charts of all time since the first start: attempts one below the other, and goodput.

use super::canvas::{Axis, Chart, Ink, figure};
use super::charts::short;
use crate::number_format;
use crate::record::{Attempt, Goodput, Record, Status};

/// Those that the record has figures for.
pub(super) fn all(record: &Record) -> String {
    let goodput = record.goodput.as_ref().map(goodput);
    [goodput, attempts(record)].into_iter().flatten().collect()
}

/// A smaller part would not be seen.
const VISIBLE_SHARE_MIN: f64 = 0.002;

fn goodput(goodput: &Goodput) -> String {
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
        title: "Goodput",
        caption: &caption,
        x: Axis { label: "s", range: 0.0..goodput.elapsed_seconds, format: short },
        y: Axis { label: "run", range: 0.0..1.0, format: |_| String::new() },
    };
    let inks = (0..).map(Ink::Series);
    let is_visible = |time: f64| time > VISIBLE_SHARE_MIN * goodput.elapsed_seconds;
    let shown: Vec<_> = parts.into_iter().zip(inks).filter(|it| is_visible(it.0.1)).collect();
    let legend: Vec<_> = shown
        .iter()
        .map(|((name, time), ink)| (format!("{name} {} s", short(*time)), *ink))
        .collect();
    let legend: Vec<_> = legend.iter().map(|(name, ink)| (name.as_str(), *ink)).collect();
    figure(&chart, &legend, |canvas| {
        let mut left = 0.0;
        for ((_, time), ink) in shown {
            canvas.bar([(left, 0.15), (left + time, 0.85)], ink, 1.0);
            left += time;
        }
    })
}

fn attempts(record: &Record) -> Option<String> {
    let start = record.attempts.first()?.started_unix_ms;
    let since_start = |unix_ms: u64| unix_ms.saturating_sub(start) as f64 / 1e3;
    let end_of =
        |attempt: &Attempt| since_start(attempt.ended_unix_ms.unwrap_or(attempt.started_unix_ms));
    let end = record.attempts.iter().map(end_of).fold(1e-3, f64::max);
    let count = record.attempts.len() as f64;
    let chart = Chart {
        title: "Attempts",
        caption: "From start to end of each, with the steps that it made.",
        x: Axis { label: "s", range: 0.0..end, format: short },
        y: Axis { label: "attempt", range: -0.5..count - 0.5, format: |_| String::new() },
    };
    let legend = [("ended in order", Ink::Series(2)), ("failed", Ink::Series(3))];
    Some(figure(&chart, &legend, |canvas| {
        for (row, attempt) in record.attempts.iter().rev().enumerate() {
            let row = row as f64;
            let left = since_start(attempt.started_unix_ms);
            let is_failure = attempt.status == Status::Failed;
            let ink = if is_failure { Ink::Series(3) } else { Ink::Series(2) };
            canvas.bar([(left, row - 0.3), (end_of(attempt), row + 0.1)], ink, 1.0);
            let first = attempt.resumed_after_step.map_or(0, |step| step) + 1;
            let (number, last) = (attempt.number, attempt.last_step);
            let text = format!("{number}: steps {first} to {last}, {}", attempt.status.name());
            canvas.text((left.min(0.6 * end), row + 0.4), text);
        }
    }))
}
