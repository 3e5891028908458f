//! Where the time of a run went, over all its attempts.

use super::Record;
use super::attempt::{Attempt, StartParts};
use super::sections::Goodput;
use super::steps::StepSeries;

impl Goodput {
    /// `None` before the last attempt has ended.
    pub(super) fn of(record: &Record, series: &StepSeries) -> Option<Self> {
        let attempts = &record.attempts;
        let start = attempts.first()?.started_unix_ms;
        let end = attempts.last()?.ended_unix_ms?;
        let elapsed_ms = end.checked_sub(start).filter(|&elapsed| elapsed > 0)?;
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
        let phases = &series.phases_ns;
        let starts = |of: fn(&StartParts) -> f64| -> f64 {
            attempts.iter().filter_map(|attempt| attempt.start.as_ref()).map(of).sum()
        };
        let mut goodput = Self {
            elapsed_seconds: elapsed_ms as f64 / 1e3,
            training_seconds: seconds(phases.step_ns() - phases.data),
            share: 0.0,
            data_seconds: seconds(phases.data),
            checkpoint_seconds: seconds(phases.checkpoint),
            evaluation_seconds: seconds(phases.eval),
            start_seconds: starts(|parts| parts.bootstrap_seconds + parts.wire_up_seconds),
            restore_seconds: starts(|parts| parts.restore_seconds),
            repeated_seconds: attempts.iter().map(|attempt| attempt.repeated_seconds).sum(),
            down_seconds: attempts.windows(2).map(down_seconds).sum(),
            other_seconds: 0.0,
            lost_steps: lost_steps(attempts),
        };
        goodput.share = goodput.training_seconds / goodput.elapsed_seconds;
        goodput.other_seconds = goodput.elapsed_seconds - goodput.known_seconds();
        Some(goodput)
    }

    fn known_seconds(&self) -> f64 {
        self.training_seconds
            + self.data_seconds
            + self.checkpoint_seconds
            + self.evaluation_seconds
            + self.start_seconds
            + self.restore_seconds
            + self.repeated_seconds
            + self.down_seconds
    }
}

/// Between two attempts.
fn down_seconds(pair: &[Attempt]) -> f64 {
    let ended = pair[0].ended_unix_ms.unwrap_or(pair[0].started_unix_ms);
    pair[1].started_unix_ms.saturating_sub(ended) as f64 / 1e3
}

/// An attempt that ended before it had restored a checkpoint made no steps and lost none.
fn lost_steps(attempts: &[Attempt]) -> u64 {
    let started = attempts.iter().filter(|attempt| attempt.resumed_after_step.is_some());
    let started: Vec<_> = started.collect();
    let lost = started.windows(2).map(|pair| {
        let resumed = pair[1].resumed_after_step.unwrap_or(0);
        pair[0].last_step.saturating_sub(resumed)
    });
    lost.sum()
}
