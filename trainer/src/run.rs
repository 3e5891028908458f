//! A run from its command line to its record: what every rank does, in order.

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::time::Duration;

use checkpoint::{Identity, Store};
use launch::StopFlag;
use launch::bootstrap::World;

use crate::announce::{Ended, Teller};
use crate::assemble::{batch_plan, data_failure};
use crate::attempt::{self, Attempt, End, Ends, Probe};
use crate::chronicle::{Chronicle, Ending};
use crate::config::{Config, Device};
use crate::data::Source;
use crate::durability::{Durability, checkpoint_failure};
use crate::evaluation::Evaluation;
use crate::failure::{ExitCode, Failure, Outcome};
use crate::folder::{Folder, Prepared};
use crate::hugging_face::Import;
use crate::inject::{self, Injection, Injector};
use crate::meeting::{
    Agreed, agree_on_configuration, agree_on_folder, agree_on_weights, gather_ranks,
};
use crate::profile::{self, Profile};
use crate::record::{self, Record, Status};
use crate::sizing::{Shape, Sizing};
use crate::state::weights_digest;
use crate::step::Trainer;
use crate::telemetry::{LogFormat, Telemetry, TelemetryOptions};
use crate::world::{leave, open_world, part, thread_pool};

/// What `yardstick train` was asked for.
#[derive(Debug)]
pub(crate) struct RunOptions {
    /// The resolved configuration.
    pub config: Config,
    /// The run's folder; `None` makes a new one under `runs/`.
    pub out: Option<PathBuf>,
    /// Refuse a folder that is not empty.
    pub fresh: bool,
    /// Stop after this many steps.
    pub steps: Option<u64>,
    /// Steps between evaluations.
    pub eval_every: Option<u64>,
    /// Loss to stop at.
    pub target_loss: Option<f64>,
    /// How steps, events and warnings are told.
    pub log_format: LogFormat,
    /// Measure each op of this step.
    pub profile_step: Option<u64>,
    /// Faults to inject.
    pub injections: Vec<Injection>,
}

/// How a process leaves a run that did not fail.
#[derive(Debug)]
pub(crate) struct Over {
    /// What it returns.
    pub(crate) code: ExitCode,
    /// Whether it parted from the other ranks in order: else a thread may be stuck.
    pub(crate) has_parted: bool,
}

/// Trains: alone, or as one rank of many.
///
/// # Errors
/// Whatever ended the run, with its exit code; rank 0 has put it into the record.
pub(crate) fn run(options: &RunOptions) -> Outcome<Over> {
    let config = &options.config;
    if config.settings.run.device == Device::Cuda {
        let error = anyhow::anyhow!("--device cuda: this build has no CUDA engine; use cpu");
        return Err(Failure::new(ExitCode::Environment, error));
    }
    let last_step = attempt::last_step(config, options.steps)?;
    profile::check(options.profile_step, config, last_step)?;
    let signals = StopFlag::install().map_err(|error| Failure::new(ExitCode::Internal, error))?;
    let world = open_world(config)?;
    let train = || Setting::new(options, &world, &signals, last_step)?.train();
    let trained = thread_pool(&world.threads).and_then(|pool| pool.install(train));
    match trained {
        Ok(code) => Ok(Over { code, has_parted: part(world) }),
        Err(failure) => {
            leave(&world, &failure);
            let rank = world.placement.rank;
            Err(Failure { rank: failure.culprit(rank), told_by: Some(rank), ..failure })
        }
    }
}

/// What is known before training starts.
struct Setting<'run> {
    options: &'run RunOptions,
    world: &'run World,
    signals: &'run StopFlag,
    source: Source,
    folder: Folder,
    prepared: Prepared,
    workload_id: String,
    last_step: u64,
    /// What the memory plan says of this rank.
    planned_bytes: u64,
    /// Where the weights of step 0 come from, unless the run resumes.
    import: Option<Import>,
}

impl<'run> Setting<'run> {
    fn new(
        options: &'run RunOptions,
        world: &'run World,
        signals: &'run StopFlag,
        last_step: u64,
    ) -> Outcome<Self> {
        let config = &options.config;
        let placement = &world.placement;
        inject::check(&options.injections, placement.world, last_step)?;
        let plan = batch_plan(config, placement.rank, placement.world)?;
        let shape = Shape {
            world: placement.world,
            local: placement.local_world,
            threads: world.threads.threads,
            shares_memory: world.collective.shares_memory(),
        };
        let compute = config.workload.precision.compute;
        let profile_bytes =
            profile::bytes(options.profile_step, compute, shape.local, shape.threads);
        let sizing = Sizing::new(config, shape, profile_bytes)?;
        sizing.require(placement.local_world)?;
        let workload = &config.workload;
        let source = Source::open(&workload.data, workload.model.vocabulary, &config.base)
            .map_err(data_failure)?;
        source.training(workload.batch.sequence_tokens).map_err(data_failure)?;
        if options.eval_every.is_some() {
            Evaluation::new(&source, workload.data.evaluation_sequences, &plan)?;
        }
        let init_from = config.settings.run.init_from.as_deref();
        let import = init_from.map(|folder| Import::open(Path::new(folder), &workload.model));
        let import = import.transpose()?;
        let workload_id = config.workload.id(source.digest());
        agree_on_configuration(options, world, &workload_id)?;
        // Whatever is refused is refused before the folder is made.
        let Agreed { folder, prepared } = agree_on_folder(options, world, &workload_id, last_step)?;
        Ok(Self {
            options,
            world,
            signals,
            source,
            folder,
            prepared,
            workload_id,
            last_step,
            planned_bytes: sizing.total_bytes,
            import,
        })
    }

    fn teller(&self) -> Teller<'_> {
        let is_quiet = self.world.placement.rank != 0;
        Teller { format: self.options.log_format, folder: self.folder.root(), is_quiet }
    }

    fn train(&self) -> Outcome<ExitCode> {
        let Prepared::Attempt { number, run } = &self.prepared else {
            self.tell_complete_already();
            return Ok(ExitCode::Done);
        };
        let (config, collective) = (&self.options.config, &*self.world.collective);
        let identity = Identity::new(run, &self.workload_id);
        let store =
            Store::open(&self.folder.checkpoints(), &identity).map_err(checkpoint_failure)?;
        let keep = config.settings.checkpoint.clone();
        let mut durability = Durability::claim(store, keep, *number, collective)?;
        let ranks = gather_ranks(self.options, self.world, self.planned_bytes, None)?;
        let mut chronicle = Chronicle::begin(
            &self.folder,
            config,
            &self.workload_id,
            collective,
            ranks,
            durability.attempt(),
        )?;
        // Never freed: after a lost peer the network may still write into its buffers, and every
        // end of a run is soon the end of the process.
        let mut trainer = ManuallyDrop::new(None);
        let outcome = self.attempt(&mut trainer, &mut durability, &mut chronicle);
        let ending =
            Ending { outcome: &outcome, trainer: trainer.as_ref(), durability: &durability };
        let recorded = chronicle.end(&ending);
        self.finish(&outcome, recorded, &chronicle, durability.committed)?;
        outcome.map(|end| match end {
            End::Stopped => ExitCode::Stopped,
            End::LastStep | End::TargetLoss => ExitCode::Done,
        })
    }

    fn tell_complete_already(&self) {
        if self.world.placement.rank != 0 {
            return;
        }
        if let Some(step) = self.options.profile_step {
            self.teller().done_before(step, profile::MISSED);
        }
        // All that is known here is that it is so.
        let record = Record::read(self.folder.root()).ok();
        let committed = record.and_then(|record| {
            let saved = record.checkpoints.map(|checkpoints| checkpoints.last_step);
            saved.or(record.attempts.last()?.committed_step)
        });
        let ended = Ended {
            status: Status::Complete,
            exit_code: Some(ExitCode::Done as u8),
            reason: None,
            committed_step: committed,
        };
        let shown = self.folder.root().display();
        self.teller().end(format!("{shown}: complete already, nothing to do"), &ended);
    }

    /// A record that cannot be written fails a run that was fine, and hides no other ending.
    fn finish(
        &self,
        outcome: &Outcome<End>,
        recorded: Outcome<()>,
        chronicle: &Chronicle,
        committed: Option<u64>,
    ) -> Outcome<()> {
        let shown = self.folder.root().display();
        let step = committed.map_or("nothing".to_owned(), |step| format!("step {step}"));
        let Some(record) = chronicle.record() else {
            if let Err(failure) = recorded {
                tracing::error!("what ended this rank could not be left in the folder: {failure}");
            }
            return Ok(());
        };
        let mut ended = Ended::of(record, committed);
        let text = match (outcome, &recorded) {
            (Ok(End::Stopped), _) => {
                format!("{shown}: stopped; {step} is saved, the same command goes on")
            }
            (Ok(_), Ok(())) => format!("{shown}: complete; see `yardstick report {shown}`"),
            (Ok(_), Err(failure)) => {
                (ended.status, ended.exit_code) = (Status::Failed, Some(failure.code as u8));
                ended.reason = Some(chronicle.reason(failure, None));
                format!("{shown}: training is done and not recorded; {step} is saved")
            }
            (Err(_), _) => format!("{shown}: failed; {step} is saved"),
        };
        self.teller().end(text, &ended);
        match (outcome, recorded) {
            (Ok(End::LastStep | End::TargetLoss), recorded) => return recorded,
            (_, Err(failure)) => tracing::error!("the record could not be written: {failure}"),
            (_, Ok(())) => {}
        }
        Ok(())
    }

    fn attempt(
        &self,
        trainer: &mut Option<Trainer<'run>>,
        durability: &mut Durability,
        chronicle: &mut Chronicle,
    ) -> Outcome<End> {
        let (config, collective) = (&self.options.config, &*self.world.collective);
        let injector = Injector::new(&self.options.injections, collective.rank());
        let trainer = trainer.insert(Trainer::new(config, &self.source, collective, injector)?);
        let resumed = durability.resume(trainer)?;
        let floor = trainer.sequences.describe().entropy_floor_nats;
        chronicle.resumed(resumed.unwrap_or(0), floor)?;
        self.import(trainer, resumed, chronicle)?;
        self.teller().start(self.introduction(resumed));
        self.note_missed_injections(resumed.unwrap_or(0));
        let telemetry = self.telemetry(resumed.unwrap_or(0))?;
        if resumed.is_some() {
            durability.start_tidying(trainer);
        }
        let held_out = config.workload.data.evaluation_sequences;
        let mut evaluation = match self.options.eval_every {
            Some(_) => Some(Evaluation::new(&self.source, held_out, &trainer.batch_plan)?),
            None => None,
        };
        let matmul_probe_s = config.settings.telemetry.matmul_probe_s;
        let mut attempt = Attempt {
            number: durability.attempt(),
            trainer,
            durability,
            chronicle,
            evaluation: &mut evaluation,
            telemetry: &telemetry,
            probe: Probe {
                compute: config.workload.precision.compute,
                local_world: self.world.placement.local_world,
                budget: Some(Duration::from_secs_f64(matmul_probe_s)),
                profile: self.profile(resumed.unwrap_or(0)),
                matmul_flops_per_second: None,
            },
            signals: self.signals,
            ends: Ends {
                last_step: self.last_step,
                eval_every: self.options.eval_every,
                target_loss: self.options.target_loss,
            },
        };
        let end = attempt.run();
        let found = attempt.probe.matmul_flops_per_second;
        chronicle.matmul_flops_per_second = found;
        match telemetry.finish() {
            Ok(series) => chronicle.series = Some(series),
            Err(error) if end.is_ok() => return Err(Failure::new(ExitCode::Internal, error)),
            Err(error) => tracing::error!("steps could not be written: {error}"),
        }
        if let (Ok(_), Some(series)) = (&end, &chronicle.series) {
            let phases_ns = Some(series.phase_totals());
            chronicle.ranks =
                gather_ranks(self.options, self.world, self.planned_bytes, phases_ns)?;
            let (layout, weights) = trainer.all_weights()?;
            let is_told = collective.rank() == 0;
            chronicle.weights = is_told.then(|| weights_digest(layout, weights));
        }
        end
    }

    /// Fills the weights of step 0 from the folder that was named, the same on all ranks.
    fn import(
        &self,
        trainer: &mut Trainer<'_>,
        resumed: Option<u64>,
        chronicle: &mut Chronicle,
    ) -> Outcome<()> {
        let Some(import) = &self.import else { return Ok(()) };
        if let Some(step) = resumed {
            let shown = self.folder.root().display();
            let text = format!("{shown}: resumes after step {step}; --init-from is not read again");
            self.teller().note(text);
            return Ok(());
        }
        let model = &self.options.config.workload.model;
        let digest = trainer.set_weights(|layout, weights| {
            import.load(model, layout, weights)?;
            Ok(weights_digest(layout, weights))
        })?;
        agree_on_weights(self.options, self.world, &digest)?;
        chronicle.initial_weights(&digest)
    }

    /// The step to measure, unless the run resumes after it. Only rank 0 tells, but all measure:
    /// what the machine can do is what is left to a rank while the others are busy, too.
    fn profile(&self, resumed: u64) -> Option<Profile> {
        let step = self.options.profile_step?;
        if step <= resumed {
            self.teller().done_before(step, profile::MISSED);
            return None;
        }
        Some(Profile::new(step, self.world.placement.rank == 0))
    }

    fn note_missed_injections(&self, resumed: u64) {
        for injection in inject::missed(&self.options.injections, resumed) {
            let Injection { step, rank, .. } = injection;
            self.teller().done_before(*step, &format!("no fault of rank {rank} in it"));
        }
    }

    fn introduction(&self, resumed: Option<u64>) -> String {
        let World { placement, threads, .. } = self.world;
        let from = resumed.map_or(String::new(), |step| format!(", resumed after step {step}"));
        format!(
            "{}: {} ({}), world size {}, threads per rank {}{from}",
            self.folder.root().display(),
            self.options.config.name,
            self.workload_id,
            placement.world,
            threads.threads
        )
    }

    fn telemetry(&self, completed_steps: u64) -> Outcome<Telemetry> {
        let World { placement, .. } = self.world;
        Telemetry::start(TelemetryOptions {
            dir: self.folder.root().to_owned(),
            rank: placement.rank,
            world: placement.world,
            log_format: self.options.log_format,
            total_steps: self.last_step,
            completed_steps,
            log_every_steps: self.options.config.settings.telemetry.log_every_steps,
        })
        .map_err(|error| match error {
            record::Error::Malformed { .. } | record::Error::LostSteps { .. } => {
                Failure::usage(format!(
                    "{error}\n  hint: the checkpoints are whole; put the file back from a copy, or \
                     go on in a new folder with --init-from an export of this one"
                ))
            }
            error => Failure::new(ExitCode::Internal, error),
        })
    }
}
