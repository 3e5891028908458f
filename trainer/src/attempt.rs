//! One start of a run: from the restored state to the last step, a stop, or a failure.

use std::time::{Duration, Instant};

use models::workload::Compute;

use crate::chronicle::Chronicle;
use crate::config::Config;
use crate::durability::Durability;
use crate::evaluation::Evaluation;
use crate::failure::{Failure, Outcome};
use crate::phase::Phase;
use crate::probe;
use crate::profile::{Profile, Rates};
use crate::step::{Stepped, Trainer, Wish};
use crate::telemetry::{StepSample, Telemetry};

/// When a run ends, besides its last step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    /// Steps of the run.
    pub(crate) last_step: u64,
    /// Steps between evaluations.
    pub(crate) eval_every: Option<u64>,
    /// Loss to stop at.
    pub(crate) target_loss: Option<f64>,
}

/// How an attempt ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// All steps are done.
    LastStep,
    /// The loss is low enough.
    TargetLoss,
    /// Somebody asked.
    Stopped,
}

/// What is measured of the machine once the first step is done, so that nothing comes before it,
/// and of one step once that is done.
#[derive(Debug)]
pub(crate) struct Probe {
    /// The format of the matrices.
    pub(crate) compute: Compute,
    /// Ranks that measure on this machine at the same time.
    pub(crate) local_world: usize,
    /// How long to multiply them, until that was done.
    pub(crate) budget: Option<Duration>,
    /// The step that is measured op by op.
    pub(crate) profile: Option<Profile>,
    /// What was found.
    pub(crate) matmul_flops_per_second: Option<f64>,
}

impl Probe {
    /// For a profile: what is known already, and what is measured now.
    fn rates(&self) -> Rates {
        Rates::measure(self.compute, self.local_world, self.matmul_flops_per_second)
    }
}

/// The parts of one attempt.
#[derive(Debug)]
pub(crate) struct Attempt<'run, 'world> {
    pub(crate) trainer: &'run mut Trainer<'world>,
    pub(crate) durability: &'run mut Durability,
    pub(crate) chronicle: &'run mut Chronicle,
    pub(crate) evaluation: &'run mut Option<Evaluation>,
    pub(crate) telemetry: &'run Telemetry,
    pub(crate) probe: Probe,
    pub(crate) signals: &'run launch::StopFlag,
    pub(crate) ends: Ends,
    pub(crate) number: u32,
}

impl Attempt<'_, '_> {
    /// Trains until there is a reason to end, and leaves what the end owes on disk.
    pub(crate) fn run(&mut self) -> Outcome<End> {
        let end = self.steps()?;
        let step = self.trainer.state.progress.step;
        if end == End::Stopped {
            // What is old stays until the run resumes: whoever asked may not wait.
            self.durability.leave_tidying();
            let saved = self.require_save("the run was asked to stop");
            self.finish_profile();
            return saved.map(|()| end);
        }
        if self.durability.owed_at_end(step) {
            self.require_save("the last step is done")?;
        }
        self.durability.finish_tidying();
        self.finish_profile();
        Ok(end)
    }

    fn steps(&mut self) -> Outcome<End> {
        while self.trainer.state.progress.step < self.ends.last_step {
            let step = self.trainer.state.progress.step + 1;
            let (stepped, evaluation) = self.step().map_err(|failure| failure.at_step(step))?;
            if stepped.agreed.stop {
                return Ok(End::Stopped);
            }
            let loss = if self.ends.eval_every.is_some() { evaluation } else { Some(stepped.loss) };
            if let (Some(loss), Some(target)) = (loss, self.ends.target_loss)
                && loss <= target
            {
                return Ok(End::TargetLoss);
            }
        }
        Ok(End::LastStep)
    }

    /// One step with what follows it, timed as a whole.
    fn step(&mut self) -> Outcome<(Stepped, Option<f64>)> {
        let step = self.trainer.state.progress.step + 1;
        let wish = self.wish(step);
        let due = self.ends.eval_every.is_some_and(|steps| step.is_multiple_of(steps));
        let evaluation = self.evaluation.as_mut().filter(|_| due);
        let profile = self.probe.profile.as_mut().filter(|profile| profile.is_of(step));
        let ((stepped, evaluation), phases, wall_ns) = self.trainer.time_step(|trainer| {
            let mut stepped = match profile {
                Some(profile) => profile.measure(trainer, wish)?,
                None => trainer.step(wish)?,
            };
            let Some(evaluation) = evaluation else { return Ok((stepped, None)) };
            let loss = evaluation.loss(trainer)?;
            stepped.communication = stepped.communication.and(trainer.gathers.take());
            Ok((stepped, Some(loss)))
        })?;
        let communication = stepped.communication;
        self.telemetry.step(StepSample {
            attempt: self.number,
            step,
            loss: stepped.loss,
            gradient_norm: stepped.gradient_norm,
            learning_rate: stepped.learning_rate,
            tokens: self.trainer.tokens_per_step,
            evaluation_loss: evaluation,
            phases,
            comm_total_ns: communication.total_ns,
            comm_hidden_ns: communication.hidden_ns,
            first_bucket_lead_ns: communication.first_bucket_lead_ns,
            comm_bytes: communication.bytes,
            wall_ns,
        });
        if stepped.agreed.save && !stepped.agreed.stop {
            self.save()?;
        }
        if !stepped.agreed.stop {
            self.measure_machine(step)?;
        }
        Ok((stepped, evaluation))
    }

    /// Measures the machine after the first step, and after one that was measured itself. The time
    /// is no step's, and nothing is on its way between ranks meanwhile.
    fn measure_machine(&mut self, step: u64) -> Outcome<()> {
        let probe = &mut self.probe;
        let profile = probe.profile.take_if(|profile| profile.is_of(step));
        let budget = probe.budget.take();
        if budget.is_none() && profile.is_none() {
            return Ok(());
        }
        self.trainer.settle()?;
        self.trainer.clock.pause();
        if let Some(budget) = budget {
            let found = probe::matmul_flops_per_second(probe.compute, budget);
            probe.matmul_flops_per_second = found;
        }
        if let Some(profile) = profile {
            profile.tell(&probe.rates());
        }
        Ok(())
    }

    /// At the end: tells the profile of a step that a stop ended, whose save came first, or that
    /// the step never came.
    fn finish_profile(&mut self) {
        let Some(profile) = self.probe.profile.take() else { return };
        let last = self.trainer.state.progress.step;
        if profile.is_of(last) {
            profile.tell(&self.probe.rates());
        } else {
            profile.tell_missing(last);
        }
    }

    /// Saves; the time it takes belongs to the next step. Steps reach the disk first, so that a
    /// committed checkpoint never knows more steps than the files do.
    fn save(&mut self) -> Outcome<bool> {
        let step = self.trainer.state.progress.step;
        self.trainer.settle().map_err(|failure| failure.at_step(step))?;
        self.trainer.clock.enter(Phase::Checkpoint);
        let triggered = Instant::now();
        let unable = self.telemetry.sync().err();
        let saved = self.durability.save(self.trainer, triggered, unable.as_deref());
        let is_saved = saved.map_err(|failure| failure.at_step(step))?;
        if is_saved && let Err(error) = self.chronicle.committed(step) {
            let what = "if its checkpoints are lost, this run starts again at step 1";
            self.durability.warn(Some(step), format!("{what}: {error}"));
        }
        Ok(is_saved)
    }

    fn wish(&self, step: u64) -> Wish {
        let due = self.durability.due(step, self.trainer.collective.rank());
        // Taken also when a save is due anyway, which then answers it.
        let asked = self.signals.take_checkpoint_request();
        Wish { save: due || asked, stop: self.signals.stop_requested() }
    }

    /// A save that the end of the attempt depends on.
    fn require_save(&mut self, reason: &str) -> Outcome<()> {
        if self.save()? {
            return Ok(());
        }
        Err(self.durability.missing_save(reason, self.trainer.state.progress.step))
    }
}

/// Steps that `--steps` and the schedule allow.
pub(crate) fn last_step(config: &Config, steps: Option<u64>) -> Outcome<u64> {
    let scheduled = config.workload.schedule.steps;
    match steps {
        Some(0) => Err(Failure::usage("--steps 0: expected at least 1")),
        Some(steps) if steps > scheduled => Err(Failure::usage(format!(
            "--steps {steps}: expected at most schedule.steps = {scheduled}\n  \
             hint: --steps only stops earlier; --set schedule.steps={steps} is another workload"
        ))),
        Some(steps) => Ok(steps),
        None => Ok(scheduled),
    }
}
