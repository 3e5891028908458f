//! Goodput: breakdown of a run's time, over all its attempts.

use crate::attempt::Attempt;
use crate::record::Record;
use crate::sections::{Anomaly, Goodput};
use crate::steps::StepSeries;

impl Goodput {
    /// Computes the goodput; `None` before the last attempt has ended, and in virtual time, which
    /// is not that of attempts.
    pub(super) fn of(record: &Record, series: &StepSeries) -> Option<Self> {
        let attempts = &record.attempts;
        attempts.last()?.ended_unix_ms?;
        if record.injected().any(|fault| fault.starts_with("clock@")) {
            return None;
        }
        let down_seconds: f64 = attempts.windows(2).map(down_seconds).sum();
        let elapsed_seconds = attempts.iter().map(elapsed_seconds).sum::<f64>() + down_seconds;
        if elapsed_seconds == 0.0 {
            return None;
        }
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
        let phases = &series.phases_ns;
        let starts = attempts.iter().filter_map(|attempt| attempt.start.as_ref());
        let mut goodput = Self {
            elapsed_seconds,
            training_seconds: seconds(phases.step_ns() - phases.data),
            share: 0.0,
            data_seconds: seconds(phases.data),
            checkpoint_seconds: seconds(phases.checkpoint),
            evaluation_seconds: seconds(phases.eval),
            start_seconds: attempts.iter().map(start_seconds).sum(),
            restore_seconds: starts.map(|parts| parts.restore_seconds).sum(),
            repeated_seconds: attempts.iter().map(|attempt| attempt.repeated_seconds).sum(),
            down_seconds,
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

/// Time from the start of the process until the ranks agree and the attempt is recorded, which is
/// its recorded start.
fn start_seconds(attempt: &Attempt) -> f64 {
    attempt.start.as_ref().map_or(0.0, |parts| parts.bootstrap_seconds + parts.wire_up_seconds)
}

/// Time from the start of the process, as far as its end is known.
fn elapsed_seconds(attempt: &Attempt) -> f64 {
    start_seconds(attempt) + attempt.ran_ms() as f64 / 1e3
}

/// Time between two attempts; 0 if the clock of the later one is behind.
fn down_seconds(pair: &[Attempt]) -> f64 {
    let until_recorded = pair[1].started_unix_ms.saturating_sub(end(&pair[0])) as f64 / 1e3;
    (until_recorded - start_seconds(&pair[1])).max(0.0)
}

fn end(attempt: &Attempt) -> u64 {
    attempt.ended_unix_ms.unwrap_or(attempt.started_unix_ms)
}

/// Reports attempts that began before the end of the previous one: their clocks differ.
pub(super) fn clock_anomalies(attempts: &[Attempt]) -> Vec<Anomaly> {
    let behind = attempts.windows(2).filter_map(|pair| {
        let [earlier, later] = [pair[0].number, pair[1].number];
        let ms = end(&pair[0]).checked_sub(pair[1].started_unix_ms).filter(|&ms| ms > 0)?;
        let text = format!(
            "the clock went back: by it attempt {later} began {:.1} s before attempt {earlier} \
             ended; goodput counts no time between them",
            ms as f64 / 1e3
        );
        Some(Anomaly { step: None, rank: None, text })
    });
    behind.collect()
}

/// Counts the lost steps. An attempt that ended before it had restored a checkpoint made no steps
/// and lost none.
fn lost_steps(attempts: &[Attempt]) -> u64 {
    let started = attempts.iter().filter(|attempt| attempt.resumed_after_step.is_some());
    let started: Vec<_> = started.collect();
    let lost = started.windows(2).map(|pair| {
        let resumed = pair[1].resumed_after_step.unwrap_or(0);
        pair[0].last_step.saturating_sub(resumed)
    });
    lost.sum()
}
