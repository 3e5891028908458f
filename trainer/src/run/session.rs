//! Work of a rank between joining and leaving the other ranks: prepare, resume, train, and record
//! how the attempt ended.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint::Identity;
use device::Device;
use device::cuda::{self, Cuda, Libraries, Required};
use launch::Placement;
use launch::bootstrap::World;
use launch::signals::SignalFlags;

use super::attempt::{PeriodicEvaluation, Probes, RunningAttempt};
use super::beginning::{JobReport, begun};
use super::folder::{Folder, Prepared};
use super::nccl_log::NcclLog;
use super::options::RunOptions;
use super::peer_loss::WatchedBackends;
use super::peers::Peers;
use super::process::{close_timeout, gpu_ordinal, warn_unless_closed};
use super::rank_backend::RankBackend;
use super::rendezvous::{
    FoundWeights, PreparedFolder, RankTimes, agree_on_configuration, agree_on_folder,
    agree_on_weights, broadcast_from_rank_0, gather_nodes, gather_ranks, ranks_sharing,
    ranks_with_storage_timeout, storage_barrier,
};
use super::start_clock::StartClock;
use super::stop::{StopConditions, StopReason, target_loss};
use super::stop_request::StopPoint;
use super::together::Together;
use super::tracing::Tracing;
use super::transports::TransportProbe;
use super::tuning::Tuning;
use super::watchdog::Watchdog;
use crate::checkpoints::open::open;
use crate::checkpoints::{Checkpointer, ChosenPartner, partner, tiers};
use crate::config::Variables;
use crate::config::{self, Config};
use crate::data::Source;
use crate::failure::{Failure, Outcome};
use crate::fault_injection::{self, Injector};
use crate::hugging_face::Import;
use crate::plan::{JobShape, RankPlan};
use crate::ranks::Ranks;
use crate::step::{CorruptionFound, Evaluation, Trainer, batch_plan};
use crate::timing::matmul_probe::MatmulProbe;
use crate::timing::profile::Profile;
use record::ExitCode;
use record::golden::{Found, Golden, GoldenKey, GoldenMiss, GoldenWatch};
use record::hardware::RankHardware;
use record::slow_ranks::{self, Detector, Rule};
use record::{
    self, Anomaly, Attempt, DimensionTraffic, RankRecord, Record, Status, SteadyWatch, StepSeries,
    TargetLoss,
};
use serde_json::json;
use telemetry::fact::{Communication, Ended, Fact, Resumed, Saves};
use telemetry::hardware::AlertWatch;
use telemetry::{
    Events, OtlpOptions, PrometheusOptions, RankSteps, RankSummary, RunEnd, StepLogOptions,
    StepsBefore, SummaryOptions, Telemetry, TelemetryOptions,
};
use telemetry::{Sampled, Sampler};

/// Largest number of ranks for which the record has figures of single buckets.
const RANKS_WITH_BUCKETS_MAX: usize = 256;

/// Most blocks of steps for which the record has the times of each rank.
const BLOCKS_OF_A_RANK_MAX: usize = 64;

/// Most blocks of all ranks together, so that the record of a large job stays small.
const BLOCKS_OF_ALL_RANKS_MAX: usize = 1 << 16;

/// Longest wait of a rank that has lost a peer for rank 0's record of it: a supervisor, which knows
/// if rank 0 is lost, gives them longer than this.
const AWAIT_RECORD_AT_MOST: Duration = Duration::from_secs(5);

/// Rank of a run, ready to train.
pub(super) struct Session<'run> {
    options: &'run RunOptions,
    world: &'run World,
    signals: &'run SignalFlags,
    stop_point: &'run StopPoint,
    nccl_log: &'run NcclLog,
    /// Device that this rank computes on.
    device: Device,
    /// Backend of the operations of training.
    backend: RankBackend<'run>,
    source: Source,
    folder: Folder,
    prepared: Prepared,
    workload_id: String,
    last_step: u64,
    /// Peak memory of this rank by the memory plan.
    planned_bytes: u64,
    /// Source of the weights of step 0, unless they are initialised from the seed.
    import: Option<Import>,
    /// Ranks on other nodes with which this rank exchanges copies of checkpoints.
    partner: Option<ChosenPartner>,
}

impl<'run> Session<'run> {
    /// Checks everything that can be checked before training, and prepares the folder with the
    /// other ranks.
    pub(super) fn new(
        options: &'run RunOptions,
        world: &'run World,
        peer_loss: &'run WatchedBackends,
        signals: &'run SignalFlags,
        stop_point: &'run StopPoint,
        nccl_log: &'run NcclLog,
    ) -> Outcome<Self> {
        let config = &options.config;
        let last_step = options.last_step()?;
        let workload = &config.workload;
        let placement = &world.placement;
        let device = open_device(config, placement)?;
        fault_injection::check(&options.injections, placement.world, last_step)?;
        let batches = batch_plan(config, placement.rank, placement.world)?;
        let shape = JobShape {
            world: placement.world,
            local: placement.local_world,
            threads: world.threads.threads,
            shares_memory: world.collective.shares_memory(),
        };
        let mut plan = RankPlan::new(config, shape, options.profile_step)?;
        plan.require()?;
        let together = Together {
            ranks: ranks_with_storage_timeout(options, world),
            purpose: "read the data",
            timeout: Duration::MAX,
            stop_requested: &|| signals.stop_requested(),
        };
        let source = together.run(|| {
            let locations = config.data_locations();
            Ok(Source::open(&workload.data, workload.model.vocabulary, &locations)?)
        })?;
        source.training(workload.batch.sequence_tokens)?;
        if options.eval_every.is_some() {
            Evaluation::new(&source, workload.data.evaluation_sequences, &batches)?;
        }
        let init_from = config.settings.run.init_from.as_deref();
        let import = init_from.map(|folder| Import::open(Path::new(folder), &workload.model));
        let import = import.transpose()?;
        let workload_id = workload.id(source.digest());
        agree_on_configuration(options, world, &workload_id)?;
        let storage = ranks_with_storage_timeout(options, world);
        let partner = partner(&config.settings.checkpoint, placement.node, storage)?;
        let backend = RankBackend::open(config, world, &device, peer_loss)?;
        if let Device::Cuda(device) = &device {
            let sharing = ranks_sharing(options, world, device)?;
            plan = plan.with_device_memory(device.free_bytes()? / sharing as u64);
            plan.require()?;
        }
        // The folder is created only after all other checks.
        let PreparedFolder { folder, prepared } =
            agree_on_folder(options, world, &workload_id, last_step)?;
        Ok(Self {
            options,
            world,
            signals,
            stop_point,
            nccl_log,
            device,
            backend,
            source,
            folder,
            prepared,
            workload_id,
            last_step,
            planned_bytes: plan.total_bytes,
            import,
            partner,
        })
    }

    /// Runs one attempt, unless the run is complete already. If another run `follows` in this
    /// process, the memory of this one is freed.
    pub(super) fn train(&self, mut start: StartClock, follows: bool) -> Outcome<ExitCode> {
        let telemetry = Telemetry::start(self.telemetry_options(&start))?;
        self.stop_point.start(telemetry.events());
        let Prepared::Attempt { number, run, .. } = &self.prepared else {
            self.note_complete(telemetry.events());
            return Ok(ExitCode::Done);
        };
        let config = &self.options.config;
        let ranks = self.ranks();
        let identity = Identity::new(run, &self.workload_id);
        let settings = config.settings.checkpoint.clone();
        let storage = ranks_with_storage_timeout(self.options, self.world);
        let variables = Variables::read().agreed(storage)?;
        let planned = tiers::planned(&settings, variables, &self.folder.checkpoints(), run);
        let partner = self.partner.as_ref().map(|chosen| chosen.partner);
        let opened = open(planned, partner, &identity, settings.deadline, storage)?;
        let events = telemetry.events();
        let mut checkpointer =
            Checkpointer::claim(opened, settings, *number, ranks, events.clone())?;
        let peers = self.begin_record(events, *number, checkpointer.attempt())?;
        if let Some(ChosenPartner { warning: Some(text), .. }) = &self.partner
            && ranks.rank() == 0
        {
            checkpointer.warn(None, text.clone());
        }
        if ranks.rank() == 0 {
            checkpointer.observe(&Attempt::read_all(self.folder.root())?);
        }
        // Rank 0 has written the record.
        storage_barrier(self.options, self.world)?;
        // Not freed at the end of the process, as the network may still write to its buffers after
        // a peer was lost.
        let mut trainer = ManuallyDrop::new(None);
        start.wired_up();
        let outcome = self
            .attempt(start, &telemetry, &mut trainer, &mut checkpointer, &peers)
            .map_err(|failure| peers.explain(failure));
        if !matches!(outcome, Ok(reason) if reason.is_end()) {
            telemetry.interrupt();
        }
        let is_failure = outcome.is_err();
        let mut is_recorded = false;
        let mut record = || {
            self.warn_of_communication(events, trainer.as_ref());
            let end = self.end_of(&outcome, &peers, trainer.as_ref());
            let recorded = end_record(events, end.clone(), &checkpointer);
            if recorded.is_ok() {
                self.publish(events);
            }
            let committed_step = checkpointer.committed_step();
            self.report_end(events, &outcome, recorded, end, &peers, committed_step)?;
            is_recorded = true;
            Ok(())
        };
        let together = Together {
            ranks: storage,
            purpose: "write the record",
            timeout: close_timeout(config),
            stop_requested: &|| self.signals.stop_requested(),
        };
        let ended = if is_failure { record() } else { together.run(record) };
        if let Err(failure) = &outcome {
            let timeout = config.settings.collectives.deadline / 2;
            let end = Instant::now() + timeout.min(AWAIT_RECORD_AT_MOST);
            let is_over = || self.signals.stop_requested() || Instant::now() >= end;
            peers.await_record(failure, &is_over);
        }
        match ended {
            // The result is complete, whatever happens to other ranks after it.
            Err(failure) if is_recorded && failure.code == ExitCode::PeerLost => {
                tracing::warn!("the run is over and its result valid; after that: {failure}");
            }
            ended => ended?,
        }
        let reason = outcome?;
        if follows {
            storage_barrier(self.options, self.world)?; // no rank reads what this one frees
            drop(ManuallyDrop::into_inner(trainer));
        }
        Ok(match reason {
            StopReason::Requested => ExitCode::Stopped,
            StopReason::LastStep | StopReason::TargetLoss | StopReason::Measured => ExitCode::Done,
        })
    }

    /// Begins the record of an attempt with the reports of all ranks.
    fn begin_record(&self, events: &Events, number: u32, attempt: u32) -> Outcome<Peers> {
        let ranks = self.gather_ranks(None)?;
        let nodes = gather_nodes(self.options, self.world, &self.device)?;
        let rank = self.world.placement.rank;
        if rank == 0 {
            let report = JobReport {
                ranks: ranks.clone(),
                nodes,
                injected: fault_injection::of_attempt(&self.options.injections, number),
                library: self.ranks().collective.library(),
            };
            let begun = begun(&self.options.config, &self.workload_id, attempt, report, events)?;
            events.record(Fact::Begun(Box::new(begun)))?;
            if let Some(text) = self.backend.warning_of_placement() {
                events.warn(Anomaly { step: None, rank: None, text });
            }
        }
        Ok(Peers::new(self.folder.root(), attempt, rank, ranks, events))
    }

    /// Warns of anything unusual in the ranks' communication, on rank 0.
    fn warn_of_communication(&self, events: &Events, trainer: Option<&Trainer<'_>>) {
        let communicates = trainer.filter(|trainer| !trainer.ranks().is_alone());
        let warning = communicates.and_then(|trainer| trainer.ranks().collective.warning());
        if let Some(text) = warning.filter(|_| self.world.placement.rank == 0) {
            events.warn(Anomaly { step: None, rank: None, text });
        }
    }

    /// Returns the end of an attempt for its record.
    fn end_of(
        &self,
        outcome: &Outcome<StopReason>,
        peers: &Peers,
        trainer: Option<&Trainer<'_>>,
    ) -> Ended {
        let (status, code) = match outcome {
            Ok(StopReason::Requested) => (Status::Stopped, ExitCode::Stopped),
            Ok(StopReason::LastStep | StopReason::TargetLoss | StopReason::Measured) => {
                (Status::Complete, ExitCode::Done)
            }
            Err(failure) if is_void(failure) => (Status::Void, failure.code),
            Err(failure) => (Status::Failed, failure.code),
        };
        let communicates = trainer.filter(|trainer| !trainer.ranks().is_alone());
        let communication = communicates.map(|trainer| {
            let collective = trainer.ranks().collective;
            Communication {
                backend: collective.backend().to_owned(),
                library: collective.library(),
            }
        });
        let failure = outcome.as_ref().err();
        Ended {
            attempt: peers.attempt(),
            status,
            exit_code: code as u8,
            reason: failure.map(|failure| peers.reason(failure, trainer)),
            last_step: trainer.map_or(0, Trainer::completed_steps),
            communication,
            is_fenced: failure.is_some_and(is_fenced),
        }
    }

    /// Adds the record to the store of records, if one is configured.
    fn publish(&self, events: &Events) {
        let store = &self.options.config.settings.telemetry.records;
        if store.is_empty() || self.world.placement.rank != 0 {
            return;
        }
        let published = Record::read(self.folder.root())
            .map_err(Into::into)
            .and_then(|record| (self.options.keep_record)(store.expose(), &record));
        if let Err(error) = published {
            let text = format!("telemetry.records = {store}: not published: {error:#}");
            events.warn(Anomaly { step: None, rank: None, text });
        }
    }

    /// Returns whether any rank was asked to stop; equal on all ranks.
    pub(super) fn is_asked_to_stop(&self) -> Outcome<bool> {
        Ok(self.ranks().gather(&self.signals.stop_requested())?.contains(&true))
    }

    /// Closes what training needed beside the world's backend, after a run that did not fail.
    /// Returns whether that succeeded; if not, it logs a warning.
    pub(super) fn close(self) -> bool {
        let timeout = close_timeout(&self.options.config);
        warn_unless_closed(self.backend.close(timeout))
    }

    /// Returns all ranks, with the configured deadline of collectives.
    fn ranks(&self) -> Ranks<'_> {
        Ranks::new(self.backend.collective(), self.options.config.settings.collectives.deadline)
    }

    fn attempt<'session>(
        &'session self,
        mut start: StartClock,
        telemetry: &Telemetry,
        trainer: &mut Option<Trainer<'session>>,
        checkpointer: &mut Checkpointer,
        peers: &Peers,
    ) -> Outcome<StopReason> {
        let config = &self.options.config;
        let events = telemetry.events();
        let resumed = self.resume(events, trainer, checkpointer)?;
        start.restored();
        let trainer = trainer.as_mut().expect("resumed");
        if let Prepared::Attempt { committed: Some(committed), .. } = &self.prepared {
            let Some(step) = resumed else {
                return Err(self.folder.checkpoint_is_missing(committed, &checkpointer.places()));
            };
            let warning = committed.warning(step).filter(|_| self.world.placement.rank == 0);
            warning.into_iter().for_each(|text| checkpointer.warn(Some(step), text));
        }
        let completed_steps = resumed.unwrap_or(0);
        let entropy_floor = trainer.batches().entropy_floor_nats();
        let recovery = checkpointer.recovery().cloned();
        let state = Resumed { step: completed_steps, recovery, entropy_floor };
        events.record(Fact::Resumed(state))?;
        self.import(events, trainer, resumed)?;
        events.start(self.introduction(resumed));
        if let Some(target) = target_loss(self.options) {
            let origin = self.options.target_origin;
            events.note(format!("{origin}: the run stops when {target}"));
        }
        if let Some(sources) = checkpointer.restored_from() {
            events.note(format!("restored {sources}"));
        }
        let injections = &self.options.injections;
        let skipped = fault_injection::skipped(injections, self.number(), completed_steps);
        skipped.for_each(|text| events.note(text));
        let golden = self.golden(trainer.batches().tokens_per_step())?;
        let before = self.begin_steps(telemetry, completed_steps, golden.clone())?;
        if resumed.is_some() {
            checkpointer.start_retention();
        }
        let grace = checkpointer.stop_grace();
        self.stop_point.begin(resumed, self.options.eval_every, grace);
        let target_loss = target_loss(self.options);
        let is_target_reached = self.has_reached(events, target_loss)?;
        if config.is_on_cuda() {
            let fallbacks = trainer.ranks().gather(&trainer.fallbacks())?;
            peers.fallbacks(fallbacks);
        }
        let slow_ranks = self.slow_ranks(peers)?;
        let mut attempt = RunningAttempt {
            evaluation: self.evaluation(trainer)?,
            trainer,
            checkpointer,
            peers,
            events,
            signals: self.signals,
            stop_point: self.stop_point,
            probes: Probes {
                matmul: MatmulProbe::new(config),
                profile: self.profile(events, completed_steps),
                model: &config.workload.model,
                local_world: self.world.placement.local_world,
                transports: self.transport_probe(events),
                tracing: self.options.trace_steps.clone().map(Tracing::new),
            },
            stop_conditions: StopConditions {
                last_step: self.last_step,
                likely_last: self.likely_last(completed_steps),
                target_loss,
                is_target_reached,
            },
            steady: self.steady_watch(),
            slow_ranks,
            alerts: AlertWatch::new(self.world.placement.world),
            golden: match golden {
                Found::Golden(golden) => Some(GoldenWatch::new(golden)),
                Found::NotComparable(_) | Found::Nothing => None,
            },
            losses: before.losses,
            first_step: completed_steps + 1,
            start: Some(start),
            config_of_pods: (self.world.placement.rank == 0).then_some(config),
            untimed: None,
        };
        let sampler = self.sampler(events, attempt.trainer);
        // Ranks have opened their steps, and rank 0 has written the record.
        storage_barrier(self.options, self.world)?;
        let timeout = config.settings.collectives.deadline / 2;
        let watched = attempt.peers.watched(attempt.trainer.clock().progress(), timeout);
        let watchdog = Watchdog::start(watched);
        let reason = attempt.run();
        drop(sampler); // with a last look at the GPU, which may say why a step failed
        drop(watchdog);
        let alert = attempt.trainer.alert().get();
        let reason = reason.map_err(|failure| match alert.explanation() {
            Some(explanation) if failure.is_of_device() => failure.context(explanation),
            _ => failure,
        });
        if let Some(rate) = attempt.probes.matmul.flops_per_second() {
            events.note_for_record(Fact::MatmulRate(rate));
        }
        self.finish(reason, telemetry, trainer, peers.attempt())
    }

    /// Returns the sampler of hardware while the attempt runs.
    fn sampler(&self, events: &Events, trainer: &Trainer<'_>) -> Option<Sampler> {
        let telemetry = &self.options.config.settings.telemetry;
        let gpu = match &self.device {
            Device::Host => None,
            Device::Cuda(device) => Some(device.properties().pci_bus_id.clone()),
        };
        let sampled = Sampled {
            interval: telemetry.hardware_interval,
            gpu,
            reads_host: self.world.placement.local_rank == 0,
            root: telemetry.host_root.clone(),
            events: events.clone(),
            alert: Arc::clone(trainer.alert()),
        };
        (!telemetry.hardware_interval.is_zero()).then(|| Sampler::start(sampled))
    }

    /// Returns the likely last step: if steady steps are counted, one after a short warm-up.
    fn likely_last(&self, completed_steps: u64) -> u64 {
        let wanted = self.options.steady_steps;
        wanted.map_or(self.last_step, |wanted| self.last_step.min(completed_steps + wanted + 2))
    }

    /// Returns the golden losses of this run, unless it starts with other weights.
    fn golden(&self, tokens_per_step: u64) -> Outcome<Found> {
        if self.import.is_some() {
            return Ok(Found::Nothing);
        }
        let device = if matches!(self.device, Device::Host) { "cpu" } else { "cuda" };
        let key = GoldenKey { workload_id: &self.workload_id, device, tokens_per_step };
        let Config { name, settings, .. } = &self.options.config;
        Ok(Golden::find(settings.telemetry.golden.as_deref(), name, key)?)
    }

    /// Returns the count of steady steps, on rank 0.
    fn steady_watch(&self) -> Option<SteadyWatch> {
        let placement = &self.world.placement;
        let wanted = self.options.steady_steps.filter(|_| placement.rank == 0)?;
        Some(SteadyWatch::new(wanted, placement.world))
    }

    /// Returns the detector of slow ranks between the steps, on rank 0.
    fn slow_ranks(&self, peers: &Peers) -> Outcome<Option<Detector>> {
        if self.world.placement.rank != 0 {
            return Ok(None);
        }
        let telemetry = &self.options.config.settings.telemetry;
        let rule = Rule {
            block_steps: telemetry.straggler_block_steps,
            least_slower: telemetry.straggler_percent / 100.0,
            false_per_1000h: telemetry.straggler_false_per_1000h,
            ..Rule::default()
        };
        let detector = Detector::new(slow_ranks::classes(peers.records()), rule);
        let Some(of) = &telemetry.paces else { return Ok(Some(detector)) };
        let paces = slow_ranks::paces(of, &self.workload_id, peers.records()).map_err(|error| {
            let text = format!("telemetry.paces = {}: {error}", of.display());
            Failure::new(ExitCode::Usage, anyhow::anyhow!(text))
        })?;
        Ok(Some(detector.with_paces(&paces)))
    }

    /// Makes a trainer with the newest usable state; returns the number of its steps, `None`
    /// without a checkpoint.
    ///
    /// A first save may have been committed on only some nodes when a rank was killed. No attempt
    /// has known of a checkpoint then, so nothing is lost if the run starts again.
    fn resume<'session>(
        &'session self,
        events: &Events,
        trainer: &mut Option<Trainer<'session>>,
        checkpointer: &mut Checkpointer,
    ) -> Outcome<Option<u64>> {
        let first = trainer.insert(self.trainer(events)?);
        checkpointer.attach(first, self.partner.as_ref());
        let failure = match checkpointer.resume(first) {
            Err(failure) if self.may_start_again(&failure) => failure,
            resumed => return resumed,
        };
        checkpointer.warn(None, format!("starts again at step 1: {failure}"));
        *trainer = None; // what a failed restore leaves of the state is unspecified
        let again = trainer.insert(self.trainer(events)?);
        checkpointer.attach(again, self.partner.as_ref());
        checkpointer.start_copies(again)?;
        Ok(None)
    }

    /// Returns the number of the attempt, from 1.
    fn number(&self) -> u32 {
        match &self.prepared {
            Prepared::Attempt { number, .. } => *number,
            Prepared::Complete => 0, // there is none
        }
    }

    fn trainer(&self, events: &Events) -> Outcome<Trainer<'_>> {
        let mesh = self.backend.mesh();
        let injections = &self.options.injections;
        let injector = Injector::new(injections, mesh.world.rank(), self.number());
        let config = &self.options.config;
        let mut trainer = Trainer::new(config, &self.source, &self.device, mesh, injector)?;
        if let Device::Cuda(device) = &self.device
            && config.settings.run.tune_matmul
        {
            let Self { options, world, .. } = self;
            let root = self.folder.root();
            let attempt = self.number();
            Tuning { options, world, device, root, attempt, events }.apply(&mut trainer)?;
        }
        Ok(trainer)
    }

    /// Returns whether there is no usable checkpoint, and no attempt has known of one.
    fn may_start_again(&self, failure: &Failure) -> bool {
        matches!(self.prepared, Prepared::Attempt { committed: None, .. })
            && matches!(failure.error.downcast_ref(), Some(checkpoint::Error::NoCheckpoint { .. }))
    }

    /// Collects the measurements of the attempt, also if it failed.
    fn finish(
        &self,
        reason: Outcome<StopReason>,
        telemetry: &Telemetry,
        trainer: &mut Trainer<'_>,
        attempt: u32,
    ) -> Outcome<StopReason> {
        let blocks_max = BLOCKS_OF_ALL_RANKS_MAX / self.world.placement.world;
        let RankSummary { steps, hardware } = telemetry.finish_steps(SummaryOptions {
            attempt,
            blocks_max: blocks_max.min(BLOCKS_OF_A_RANK_MAX),
            has_series: self.is_small(),
        });
        let steps = match (steps, &reason) {
            (Ok(steps), _) => Some(steps),
            (Err(error), Ok(_)) => return Err(error.into()),
            (Err(error), Err(_)) => {
                tracing::error!("steps could not be written: {error}");
                None
            }
        };
        if reason.is_ok() {
            self.measure_end(telemetry.events(), trainer, steps, &hardware)?;
        }
        reason
    }

    /// Gathers the record of every rank. Collective.
    fn gather_ranks(&self, measured: Option<RankTimes>) -> Outcome<Vec<RankRecord>> {
        let Self { options, world, device, planned_bytes, .. } = self;
        let mut ranks = gather_ranks(options, world, device, *planned_bytes, measured)?;
        for rank in &mut ranks {
            rank.mesh = self.backend.place(rank.rank);
        }
        Ok(ranks)
    }

    /// Returns whether the record has room for details of each rank.
    fn is_small(&self) -> bool {
        self.world.placement.world <= RANKS_WITH_BUCKETS_MAX
    }

    /// Gathers the times and the hardware of all ranks, and digests the final weights, after an
    /// attempt that did not fail.
    fn measure_end(
        &self,
        events: &Events,
        trainer: &mut Trainer<'_>,
        steps: Option<RankSteps>,
        hardware: &RankHardware,
    ) -> Outcome<()> {
        let times = steps.map(|RankSteps { phases_ns, times }| RankTimes {
            phases_ns,
            buckets: if self.is_small() { trainer.bucket_records() } else { Vec::new() },
            times,
        });
        let ranks = self.gather_ranks(times)?;
        let traffic = self.ranks().gather(&trainer.traffic())?;
        let hardware = ranks_with_storage_timeout(self.options, self.world).gather(hardware)?;
        let digest = trainer.weights_digest(self.ranks())?;
        if self.world.placement.rank == 0 {
            events.note_for_record(Fact::Ranks(ranks));
            events.note_for_record(Fact::Traffic(DimensionTraffic::mean(&traffic)));
            events.note_for_record(Fact::Hardware(hardware));
            events.note_for_record(Fact::Weights(digest));
        }
        Ok(())
    }

    /// Reads the weights of step 0 from the folder of `--init-from`, if there is one and the run
    /// does not resume.
    fn import(
        &self,
        events: &Events,
        trainer: &mut Trainer<'_>,
        resumed: Option<u64>,
    ) -> Outcome<()> {
        let Some(import) = &self.import else { return Ok(()) };
        if let Some(step) = resumed {
            let shown = self.folder.root().display();
            events
                .note(format!("{shown}: resumes after step {step}; --init-from is not read again"));
            return Ok(());
        }
        let model = &self.options.config.workload.model;
        let mut reader = import.reader(model);
        trainer.set_weights(|tensor, first, elements| reader.read(tensor, first, elements))?;
        let found = FoundWeights { sample: import.sample()?, whole: trainer.replica_digest()? };
        agree_on_weights(self.options, self.world, &found)?;
        trainer.resume_from(trainer.progress())?;
        let digest = trainer.weights_digest(self.ranks())?.to_string();
        let folder = &self.options.config.settings.run.init_from;
        Ok(events.record(Fact::Imported(json!({ "folder": folder, "digest": digest })))?)
    }

    fn evaluation(&self, trainer: &Trainer<'_>) -> Outcome<Option<PeriodicEvaluation>> {
        let Some(every_steps) = self.options.eval_every else { return Ok(None) };
        let held_out = self.options.config.workload.data.evaluation_sequences;
        let evaluation = Evaluation::new(&self.source, held_out, trainer.batches().plan())?;
        Ok(Some(PeriodicEvaluation { every_steps, evaluation }))
    }

    /// Returns whether the restored steps have reached the target: an attempt that did may have
    /// ended before it could record that. Rank 0 decides, as its steps have the losses of the run.
    fn has_reached(&self, events: &Events, target: Option<TargetLoss>) -> Outcome<bool> {
        let Some(target) = target else { return Ok(false) };
        let placement = &self.world.placement;
        let mut reached = None;
        if placement.rank == 0 {
            let root = self.folder.root();
            let series = StepSeries::read(root, placement.world, Some(target))?;
            reached = series.reached().map(|reached| reached.step);
        }
        let reached = broadcast_from_rank_0(self.options, self.world, &reached)?;
        if let Some(step) = reached {
            let origin = self.options.target_origin;
            let text = format!("{origin} {}: reached at step {step} before", target.nats);
            events.note(text);
        }
        Ok(reached.is_some())
    }

    /// Returns the profile of the requested step, unless the run resumes after it. Only rank 0
    /// prints, but all ranks measure, so that the rates of the machine are measured under the load
    /// of training.
    fn profile(&self, events: &Events, completed_steps: u64) -> Option<Profile> {
        let step = self.options.profile_step?;
        if step <= completed_steps {
            events.note_completed_step("--profile-step", step);
            return None;
        }
        Some(Profile::new(step, self.world.placement.rank == 0))
    }

    /// Returns the probe of transports, if NCCL connects several ranks.
    fn transport_probe(&self, events: &Events) -> Option<TransportProbe<'_>> {
        if !self.backend.is_nccl() || self.ranks().is_alone() {
            return None;
        }
        if let Some(path) = self.nccl_log.redirected_to() {
            let path = path.display();
            let text = "NCCL_DEBUG is set without NCCL_DEBUG_FILE: NCCL of rank 0 logs to";
            events.note(format!("{text} {path}"));
        }
        let ranks = ranks_with_storage_timeout(self.options, self.world);
        Some(TransportProbe { log: self.nccl_log, ranks, groups: self.backend.logged() })
    }

    fn telemetry_options(&self, start: &StartClock) -> TelemetryOptions {
        let placement = &self.world.placement;
        let telemetry = &self.options.config.settings.telemetry;
        TelemetryOptions {
            dir: self.folder.root().to_owned(),
            rank: placement.rank,
            host: placement.host.clone(),
            world: placement.world,
            log_format: self.options.log_format,
            total_steps: self.last_step,
            log_every_steps: telemetry.log_every_steps,
            tensorboard: self.attempt_number().filter(|_| telemetry.tensorboard),
            prometheus: self.prometheus_options(),
            otlp: self.otlp_options(start),
        }
    }

    /// Returns the options of OTLP; `None` if nothing is to be sent, or no steps are left.
    fn otlp_options(&self, start: &StartClock) -> Option<OtlpOptions> {
        let config = &self.options.config;
        let Prepared::Attempt { number, run, .. } = &self.prepared else { return None };
        let url = Some(config.settings.telemetry.otlp.clone()).filter(|url| !url.is_empty())?;
        Some(OtlpOptions {
            check_proxy: checkpoint::remote::check_proxy,
            url,
            run: run.clone(),
            attempt: *number,
            started: start.began(),
            workload: config.name.clone(),
            workload_id: self.workload_id.clone(),
        })
    }

    /// Returns the number of the attempt; `None` if no steps are left.
    fn attempt_number(&self) -> Option<u32> {
        match &self.prepared {
            Prepared::Attempt { number, .. } => Some(*number),
            Prepared::Complete => None,
        }
    }

    fn prometheus_options(&self) -> Option<PrometheusOptions> {
        let settings = &self.options.config.settings.telemetry;
        let placement = &self.world.placement;
        let attempt = self.attempt_number()?;
        let info = [
            ("workload", self.options.config.name.clone()),
            ("workload_id", self.workload_id.clone()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("attempt", attempt.to_string()),
        ];
        Some(PrometheusOptions {
            address: settings.prometheus?,
            linger: settings.prometheus_linger,
            local_rank: placement.local_rank,
            ranks: placement.local_ranks.clone(),
            attempt,
            info: info.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        })
    }

    fn begin_steps(
        &self,
        telemetry: &Telemetry,
        completed_steps: u64,
        golden: Found,
    ) -> Outcome<StepsBefore> {
        let target_loss = target_loss(self.options);
        let loss_spike_z = self.options.config.settings.telemetry.loss_spike_z;
        let options = StepLogOptions { completed_steps, target_loss, golden, loss_spike_z };
        telemetry.begin_steps(&options).map_err(|error| match error {
            record::Error::Malformed { .. } | record::Error::LostSteps { .. } => {
                Failure::usage(format!(
                    "{error}\n  hint: the checkpoints are not affected; restore the file from a \
                     copy, or continue in a new folder with --init-from an export of this run"
                ))
            }
            error => error.into(),
        })
    }
}

/// Messages of rank 0.
impl Session<'_> {
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

    fn note_complete(&self, events: &Events) {
        if self.world.placement.rank != 0 {
            return;
        }
        if let Some(step) = self.options.profile_step {
            events.note_completed_step("--profile-step", step);
        }
        let record = Record::read(self.folder.root()).ok();
        let committed_step = record.and_then(|record| {
            let saved = record.checkpoints.map(|checkpoints| checkpoints.last_step);
            saved.or(record.attempts.last()?.committed_step)
        });
        events.end(RunEnd {
            text: format!("{}: already complete", self.folder.root().display()),
            status: Status::Complete,
            exit_code: Some(ExitCode::Done as u8),
            reason: None,
            committed_step,
        });
    }

    /// Returns why a run is complete before its last step.
    fn why_complete(&self, reason: StopReason) -> String {
        let target = target_loss(self.options);
        match (reason, target) {
            (StopReason::TargetLoss, Some(target)) => {
                format!(", as {target} ({})", self.options.target_origin)
            }
            (StopReason::Measured, _) => ", as enough steady steps are measured".to_owned(),
            _ => String::new(),
        }
    }

    /// Reports the end of the run on rank 0. If the record cannot be written, a complete run fails;
    /// any other end is reported unchanged.
    fn report_end(
        &self,
        events: &Events,
        outcome: &Outcome<StopReason>,
        recorded: Outcome<()>,
        ended: Ended,
        peers: &Peers,
        committed_step: Option<u64>,
    ) -> Outcome<()> {
        let shown = self.folder.root().display();
        let newest = committed_step.map_or("none".to_owned(), |step| format!("step {step}"));
        let saved = format!("newest checkpoint: {newest}");
        if self.world.placement.rank != 0 {
            if let Err(failure) = recorded {
                tracing::error!("the error file of this rank could not be written: {failure}");
            }
            return Ok(());
        }
        let mut end = RunEnd {
            text: String::new(),
            status: ended.status,
            exit_code: Some(ended.exit_code),
            reason: ended.reason,
            committed_step,
        };
        end.text = match (outcome, &recorded) {
            (Ok(StopReason::Requested), _) => {
                format!("{shown}: stopped; {saved}; the same command resumes")
            }
            (Ok(reason), Ok(())) => {
                let why = self.why_complete(*reason);
                format!("{shown}: complete{why}; see `yardstick report {shown}`")
            }
            (Ok(_), Err(failure)) => {
                end.status = Status::Failed;
                end.exit_code = Some(failure.code as u8);
                end.reason = Some(peers.reason(failure, None));
                format!("{shown}: training is complete, but could not be recorded; {saved}")
            }
            (Err(_), _) => format!("{shown}: failed; {saved}"),
        };
        events.end(end);
        match (outcome, recorded) {
            (
                Ok(StopReason::LastStep | StopReason::TargetLoss | StopReason::Measured),
                recorded,
            ) => recorded,
            (_, Err(failure)) => {
                tracing::error!("the record could not be written: {failure}");
                Ok(())
            }
            (_, Ok(())) => Ok(()),
        }
    }
}

/// Ends the record of an attempt with its checkpoints.
fn end_record(events: &Events, ended: Ended, checkpointer: &Checkpointer) -> Outcome<()> {
    let saves = Saves { tiers: checkpointer.tiers(), figures: checkpointer.figures() };
    events.note_for_record(Fact::Saves(saves));
    Ok(events.record(Fact::Ended(ended))?)
}

/// Returns whether the run has computed wrong values.
fn is_void(failure: &Failure) -> bool {
    failure.error.is::<GoldenMiss>() || failure.error.is::<CorruptionFound>()
}

/// Returns whether a newer attempt has claimed the checkpoints.
fn is_fenced(failure: &Failure) -> bool {
    matches!(failure.error.downcast_ref(), Some(checkpoint::Error::Fenced { .. }))
}

/// Opens the device of this rank.
pub(super) fn open_device(config: &Config, placement: &Placement) -> Outcome<Device> {
    if config.settings.run.device == config::Device::Cpu {
        return Ok(Device::Host);
    }
    // A missing library ends the run before it has a folder.
    Libraries::open(&Required::TRAINING)?;
    let devices = cuda::devices()?.len();
    Ok(Device::Cuda(Cuda::open(gpu_ordinal(placement, devices))?))
}
