//! All steps of a run on one rank.

use std::path::Path;

use super::file::{read_steps, steps_path};
use super::sample::StepSample;
use crate::record::error::Error;
use crate::timing::phase::PhaseTimes;

/// The steps of a run in order, across attempts.
#[derive(Debug, Clone, PartialEq)]
pub struct StepSeries {
    /// Number of ranks.
    pub world: usize,
    /// One sample per step, ascending.
    pub samples: Vec<StepSample>,
    /// Steps that were delayed because telemetry could not keep up.
    pub delayed_steps: u64,
}

/// Steps at the start of an attempt that are not measured, because caches, page tables and
/// connections are still cold.
const WARMUP_STEPS: usize = 2;

impl StepSeries {
    /// Reads rank 0's steps from a run's folder.
    ///
    /// # Errors
    /// As for [`read_steps`].
    pub fn read(dir: &Path, world: usize) -> Result<Self, Error> {
        let lines = read_steps(&steps_path(dir, 0))?;
        let samples = lines.into_iter().map(|line| line.sample).collect();
        Ok(Self { world, samples, delayed_steps: 0 })
    }

    /// Nanoseconds in each phase over all steps of an attempt, for the rank's entry in the record.
    /// Earlier attempts may have had other ranks.
    pub fn phase_totals(&self, attempt: u32) -> PhaseTimes {
        let steps: Vec<_> = self.samples.iter().filter(|it| it.attempt == attempt).collect();
        PhaseTimes::from_fn(|phase| steps.iter().map(|sample| sample.phases.get(phase)).sum())
    }

    /// Wall time in seconds of all steps up to this one and with it.
    pub fn seconds_until(&self, step: u64) -> f64 {
        let steps = self.samples.iter().take_while(|sample| sample.step <= step);
        steps.map(|sample| sample.wall_ns).sum::<u64>() as f64 / 1e9
    }

    fn last_attempt(&self) -> &[StepSample] {
        let mut attempts = self.samples.chunk_by(|left, right| left.attempt == right.attempt);
        attempts.next_back().unwrap_or_default()
    }

    /// The measured steps: those of the last attempt that has any, because earlier ones may have
    /// had another world size or machine; without the first 2 if there are more than 4.
    pub fn measured(&self) -> impl Iterator<Item = &StepSample> + Clone {
        let steps = self.last_attempt();
        let warmup = if steps.len() > 2 * WARMUP_STEPS { WARMUP_STEPS } else { 0 };
        steps[warmup..].iter()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::sample;
    use super::*;

    #[test]
    fn the_last_attempt_is_measured_without_warmup() {
        assert_eq!(measured(&[(1, 1..=5), (2, 6..=9)]), [6, 7, 8, 9], "too few to skip any");
        assert_eq!(measured(&[(1, 1..=5), (2, 6..=9), (3, 10..=14)]), [12, 13, 14]);
        assert_eq!(measured(&[]), [0; 0]);
    }

    fn measured(attempts: &[(u32, std::ops::RangeInclusive<u64>)]) -> Vec<u64> {
        let samples = attempts
            .iter()
            .flat_map(|(attempt, steps)| steps.clone().map(|step| sample(*attempt, step)))
            .collect();
        let series = StepSeries { world: 1, samples, delayed_steps: 0 };
        for (attempt, steps) in attempts {
            let steps = steps.clone().count() as u64;
            assert_eq!(series.phase_totals(*attempt).forward, steps * 30_000_000);
        }
        let without_steps = attempts.len() as u32 + 1;
        assert_eq!(series.phase_totals(without_steps), PhaseTimes::default());
        series.measured().map(|sample| sample.step).collect()
    }
}
