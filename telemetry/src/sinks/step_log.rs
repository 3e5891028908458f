//! The sink of steps: the rank's file of steps, and the figures of all steps.

use std::path::Path;

use crate::event::Event;
use crate::loss_watch::LossWatch;
use crate::sink::Sink;
use record::files::{Mode, create_folders};
use record::golden::Found;
use record::steps::file::StepFile;
use record::{Error, StepSeries, TargetLoss, truncate_after};

/// Settings of the log of steps.
#[derive(Debug, Clone)]
pub struct StepLogOptions {
    /// Number of steps in the checkpoint from which this attempt resumes; 0 starts a new run.
    pub completed_steps: u64,
    /// Loss to stop at.
    pub target_loss: Option<TargetLoss>,
    /// Golden losses.
    pub golden: Found,
    /// Z-score above which a loss is a spike.
    pub loss_spike_z: f64,
}

/// Results of the steps before an attempt: of those that are kept and those that it repeats.
#[derive(Debug)]
pub struct StepsBefore {
    /// Nanoseconds of the steps of earlier attempts that this attempt repeats.
    pub removed_ns: u64,
    /// Watch that has seen the losses of the steps that are kept.
    pub losses: LossWatch,
}

/// Writes steps and adds them up.
#[derive(Debug)]
pub(crate) struct StepLog {
    file: StepFile,
    series: StepSeries,
}

impl StepLog {
    /// Truncates this rank's steps to those of the checkpoint, and continues them.
    pub(crate) fn open(
        dir: &Path,
        rank: usize,
        world: usize,
        options: &StepLogOptions,
    ) -> Result<(Self, StepsBefore), Error> {
        create_folders(&dir.join("steps"), Mode::Run)?;
        let mut series =
            StepSeries::new(world, options.target_loss).with_golden(options.golden.clone());
        let completed = options.completed_steps;
        let mut losses = LossWatch::new(options.loss_spike_z);
        let removed_ns = truncate_after(dir, rank, completed, |sample| {
            series.push(sample);
            losses.observe(sample.step, sample.loss);
        })?;
        let log = Self { file: StepFile::open(dir, rank)?, series };
        Ok((log, StepsBefore { removed_ns, losses }))
    }

    /// Makes every step so far durable.
    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        self.file.sync()
    }

    /// Makes all steps durable, and returns their series.
    pub(crate) fn finish(mut self) -> Result<StepSeries, Error> {
        self.file.sync()?;
        Ok(self.series)
    }
}

impl Sink for StepLog {
    fn take(&mut self, event: &Event) {
        let Event::Step(line) = event else { return };
        if let Err(error) = self.file.append(line) {
            tracing::warn!("steps are kept in memory until the next save: {error}");
        }
        self.series.push(&line.sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::StepLine;
    use record::fixtures::sample;

    #[test]
    fn a_failed_write_is_returned_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = StepFile::on_full_disk(folder.path());
        let mut log = StepLog { file, series: StepSeries::new(1, None) };
        (1..=3).for_each(|step| log.take(&Event::Step(StepLine::now(0, sample(1, step)))));
        let error = log.finish().unwrap_err().to_string();
        assert!(error.contains("r000000.jsonl"), "{error}");
    }
}
