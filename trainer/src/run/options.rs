//! Options of `yardstick train`.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::config::{Config, Engine};
use crate::failure::{Failure, Outcome};
use crate::fault_injection::Injection;
use record::Record;
use telemetry::LogFormat;

/// Function that adds a record to the store at a path or URL.
pub(super) type KeepRecord = fn(&str, &Record) -> Result<(), anyhow::Error>;

/// Options of `yardstick train`.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Resolved configuration.
    pub config: Config,
    /// Folder of the run; `None` creates a new one under `runs/`.
    pub out: Option<PathBuf>,
    /// Refuses a folder that is not empty.
    pub fresh: bool,
    /// Number of steps after which to stop.
    pub steps: Option<u64>,
    /// Number of measured steady steps after which the run is complete, if not before.
    pub steady_steps: Option<u64>,
    /// Steps between evaluations.
    pub eval_every: Option<u64>,
    /// Loss to stop at.
    pub target_loss: Option<f64>,
    /// Origin of the target loss, for messages.
    pub target_origin: &'static str,
    /// Format of the log on stderr.
    pub log_format: LogFormat,
    /// Step of which each op is measured.
    pub profile_step: Option<u64>,
    /// Steps to trace.
    pub trace_steps: Option<RangeInclusive<u64>>,
    /// Faults to inject.
    pub injections: Vec<Injection>,
    /// Refuses a folder whose run is complete: nothing would be measured.
    pub refuse_complete: bool,
    /// Function that keeps the record of a run in the place of `telemetry.records`.
    pub keep_record: KeepRecord,
}

impl RunOptions {
    /// Returns the last step that `--steps` and the schedule allow.
    ///
    /// # Errors
    /// Exit code 2 if `--steps` is 0 or beyond the schedule.
    pub(super) fn last_step(&self) -> Outcome<u64> {
        let scheduled = self.config.workload.schedule.steps;
        match self.steps {
            Some(0) => Err(Failure::usage("--steps 0: expected at least 1")),
            Some(steps) if steps > scheduled => Err(Failure::usage(format!(
                "--steps {steps}: expected at most schedule.steps = {scheduled}\n  hint: --steps \
                 only stops earlier; --set schedule.steps={steps} is another workload"
            ))),
            Some(steps) => Ok(steps),
            None => Ok(scheduled),
        }
    }

    /// Refuses a trace of steps that are not part of the run.
    pub(super) fn check_trace_steps(&self, last_step: u64) -> Outcome<()> {
        let Some(steps) = self.trace_steps.as_ref().filter(|steps| *steps.end() > last_step) else {
            return Ok(());
        };
        let (first, last) = (steps.start(), steps.end());
        Err(Failure::usage(format!(
            "--trace-steps {first}..{last}: expected steps up to the last, {last_step}"
        )))
    }

    /// Refuses a profile of a step that the engine cannot measure or that is not part of the run.
    pub(super) fn check_profile_step(&self, last_step: u64) -> Outcome<()> {
        let Some(step) = self.profile_step else { return Ok(()) };
        if self.config.settings.run.engine == Engine::Candle {
            let what = "--profile-step with run.engine = candle".to_owned();
            let hint = "--engine fused measures its ops".to_owned();
            return Err(models::Error::Unsupported { what, hint }.into());
        }
        if !(1..=last_step).contains(&step) {
            let expected = format!("expected 1 to the last step, {last_step}");
            return Err(Failure::usage(format!("--profile-step {step}: {expected}")));
        }
        Ok(())
    }
}
