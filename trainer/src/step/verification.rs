//! Checks of a trainer for silent data corruption, and the repetition of a doubtful step.

use std::mem::ManuallyDrop;

use device::Device;
use device::cuda::Libraries;
use models::fused::matmul_kernel;
use models::ops::gradient_norm::ElementSums;
use record::{Corruption, CorruptionAction, CorruptionRecord, ExitCode, Repeated};

use super::Trainer;
use super::consensus::Requests;
use super::corruption::{
    Blame, BucketSums, Checks, Evidence, Judged, Member, Partners, Rounds, is_suspicious,
};
use super::micro_batches::MicroBatches;
use super::scalars::Of;
use super::shard::Shard;
use super::sharded_weights::Reads;
use super::waits::Waits;
use crate::config::{Config, CorruptionConfig, Engine};
use crate::data::prefetch::Buffers;
use crate::failure::{Failure, Outcome};
use crate::ranks::Ranks;
use record::phase::Phase;

/// Checks of one rank, and what all ranks have found.
#[derive(Debug)]
pub(super) struct Verifier {
    config: CorruptionConfig,
    partners: Partners,
    /// Number of tokens of the vocabulary.
    pub(super) vocabulary: usize,
    /// Memory of micro-batches that the prefetcher does not provide.
    pub(super) again: Buffers,
    /// Step whose gradients were suspicious.
    suspected: Option<u64>,
    /// Micro-batches of this rank, and those that it computed in checks.
    computed: u64,
    recomputed: u64,
    record: CorruptionRecord,
    /// Number of findings that were taken.
    taken: usize,
}

/// Error of wrong values that a check has found: the run is void.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", .0.text(&[]))]
pub(crate) struct CorruptionFound(Corruption);

impl Verifier {
    /// Creates the checks of this rank. Collective.
    pub(super) fn new(
        config: &Config,
        device: &Device,
        ranks: &Ranks<'_>,
        shard: &Shard,
        again: Buffers,
    ) -> Outcome<Self> {
        let owner = shard.owner;
        let number = match config.shards_weights() {
            true => owner.rank / owner.replicas,
            false => 0,
        };
        let member = Member { kernels: kernels(config, device), shard: number };
        let reductions = match config.shards_gradients() {
            true => config.workload.batch.accumulation(ranks.world())?,
            false => 1,
        };
        let members = ranks.gather(&member)?;
        let partners = Partners::new(&members, !shard.is_sharded(), reductions);
        let sdc = config.settings.sdc;
        let record = CorruptionRecord {
            every_steps: sdc.every_steps,
            recompute_every_steps: sdc.recompute_every_steps,
            unavailable: unavailable(sdc, &partners, ranks.is_alone(), shard.is_sharded()),
            ..CorruptionRecord::default()
        };
        Ok(Self {
            config: sdc,
            partners,
            vocabulary: config.workload.model.vocabulary,
            again,
            suspected: None,
            computed: 0,
            recomputed: 0,
            record,
            taken: 0,
        })
    }

    /// Returns the checks of a step, counted from 1.
    pub(super) fn checks(&self, step: u64) -> Checks {
        let CorruptionConfig { every_steps, recompute_every_steps, .. } = self.config;
        let is_due = |every: u64| every > 0 && step.is_multiple_of(every);
        let turn = step.checked_div(recompute_every_steps).unwrap_or(0) as usize;
        Checks {
            replicas: is_due(every_steps),
            shift: is_due(recompute_every_steps).then_some(turn),
            suspects: !is_due(recompute_every_steps),
            is_repeat: false,
        }
    }

    /// Counts micro-batches of training, and those that are computed again.
    pub(super) fn count(&mut self, which: MicroBatches, micro_batches: usize) {
        let counted = match which {
            MicroBatches::Own => &mut self.computed,
            MicroBatches::OwnAgain | MicroBatches::OfRank(_) => &mut self.recomputed,
            MicroBatches::Fixed(_) => return,
        };
        *counted += micro_batches as u64;
    }

    /// Decides what a finding does: only a fault of gradients that has passed may be repaired, and
    /// only the first one of a rank, and the first one that names none.
    fn action(&self, blame: &Blame) -> CorruptionAction {
        let is_first = !self.record.findings.iter().any(|it| it.rank == blame.rank);
        match blame.repeat {
            Some(Repeated::Transient) if is_first => self.config.action,
            _ => CorruptionAction::Stop,
        }
    }

    /// Records a finding, which ends the run unless a repetition has repaired it.
    fn find(&mut self, step: u64, blame: &Blame, bucket: Option<String>) -> Outcome<()> {
        let action = self.action(blame);
        let Blame { what, rank, repeat, sums, votes, .. } = *blame;
        let gpu = None; // known to the records of ranks
        let [found, expected] =
            [sums.found, sums.expected].map(|sum| Some(sum).filter(|it| it.is_finite()));
        let finding =
            Corruption { step, rank, gpu, what, bucket, found, expected, votes, repeat, action };
        self.record.findings.push(finding.clone());
        if action == CorruptionAction::Repeat {
            return Ok(());
        }
        let failure = Failure::new(ExitCode::Numerical, CorruptionFound(finding));
        let failure = if step > 0 { failure.at_step(step) } else { failure };
        Err(match rank {
            Some(rank) => failure.caused_by(rank),
            None => failure,
        })
    }
}

/// Describes what the configured checks cannot compare.
fn unavailable(
    sdc: CorruptionConfig,
    partners: &Partners,
    is_alone: bool,
    is_sharded: bool,
) -> Vec<String> {
    if is_alone {
        let text = "replicas and reductions: there is one rank, which repeats its gradients";
        return vec![text.to_owned()];
    }
    let gradients = partners.unchecked_gradients().filter(|_| sdc.recompute_every_steps > 0);
    let weights = partners.unchecked_weights().filter(|_| sdc.every_steps > 0);
    let moments = (sdc.every_steps > 0 && is_sharded)
        .then(|| "moments of all ranks: each has one owner".to_owned());
    gradients.into_iter().chain(weights).chain(moments).collect()
}

/// Returns everything that decides the bits of gradients on a rank, besides the workload.
fn kernels(config: &Config, device: &Device) -> String {
    let own = match device {
        Device::Host => {
            let compute = config.workload.precision.compute;
            format!("{} {}", std::env::consts::ARCH, matmul_kernel(compute))
        }
        Device::Cuda(device) => {
            let properties = device.properties();
            let (name, capability) = (&properties.name, properties.compute_capability);
            let versions = Libraries::of_process().versions();
            let multiprocessors = properties.multiprocessors;
            format!(
                "{name} {capability} {multiprocessors} {:?} {:?} {:?} {:?}",
                versions.cuda_driver, versions.kernel_module, versions.nvrtc, versions.cublaslt
            )
        }
    };
    match config.settings.run.engine {
        Engine::Fused => own,
        // Its matmuls divide their work by the number of threads.
        Engine::Candle => format!("{own}, {} threads", rayon::current_num_threads()),
    }
}

impl Trainer<'_> {
    /// Returns the record of the checks so far.
    pub(crate) fn corruption_record(&self) -> CorruptionRecord {
        let Verifier { record, computed, recomputed, .. } = &self.verifier;
        let share = *recomputed as f64 / (*computed).max(1) as f64;
        CorruptionRecord { recomputed_share: share, ..record.clone() }
    }

    /// Returns the findings since the last call.
    pub(crate) fn take_corruptions(&mut self) -> Vec<Corruption> {
        let findings = &self.verifier.record.findings;
        let new = findings[self.verifier.taken..].to_vec();
        self.verifier.taken = findings.len();
        new
    }

    /// Computes the gradients of a fixed input, and compares them with those of the ranks with the
    /// same kernels. Collective, before the first step.
    ///
    /// # Errors
    /// Exit code 4 if a rank computes others.
    pub(crate) fn self_test(&mut self) -> Outcome<()> {
        if self.ranks.is_alone() || self.verifier.config.recompute_every_steps == 0 {
            return Ok(());
        }
        self.scalars.clear(&*self.ops)?;
        self.recompute(MicroBatches::Fixed(Reads::MicroBatch { follows: true }))?;
        self.scalars.read(&self.device)?;
        self.tallies.get_mut().discard_gathers();
        let sums = self.gather_sums([self.scalars.total(Of::Recomputed)])?;
        self.verifier.record.checks += u64::from(self.verifier.partners.has_equals());
        match self.verifier.partners.differing_self_test(|rank| Some(sums[rank][0])) {
            Some(blame) => self.verifier.find(0, &blame, None),
            None => Ok(()),
        }
    }

    /// Compares what replicas have in common before it is saved. Collective: waits for weights in
    /// flight.
    ///
    /// # Errors
    /// Exit code 4 if they differ.
    pub(crate) fn compare_replicas(&mut self) -> Outcome<()> {
        if self.verifier.config.every_steps == 0 || !self.verifier.partners.has_replicas() {
            return Ok(());
        }
        self.synchronize_weights()?;
        self.scalars.clear(&*self.ops)?;
        self.add_replica_sums()?;
        self.scalars.read(&self.device)?;
        let sums = self.gather_sums(self.scalars.replica())?;
        self.verifier.record.checks += 1;
        match self.verifier.partners.differing_replica(|rank| Some(sums[rank])) {
            Some(blame) => self.verifier.find(self.state.progress.step, &blame, None),
            None => Ok(()),
        }
    }

    /// Adds up what this rank has in common with its replicas.
    pub(super) fn add_replica_sums(&mut self) -> Outcome<()> {
        let Self { state, ops, scalars, .. } = self;
        state.add_replica_sums(&mut **ops, scalars)
    }

    /// Gathers sums of all ranks.
    fn gather_sums<const N: usize>(&self, own: [ElementSums; N]) -> Outcome<Vec<[ElementSums; N]>> {
        let own: Vec<f64> = own.iter().flat_map(|sums| [sums.weighted, sums.squares]).collect();
        let fields = self.gather_fields(&own)?;
        let of_rank = |fields: &[f64]| {
            let sums = |at: usize| ElementSums { weighted: fields[at], squares: fields[at + 1] };
            std::array::from_fn(|index| sums(2 * index))
        };
        Ok(fields.chunks_exact(2 * N).map(of_rank).collect())
    }

    /// Gathers as many numbers of each rank.
    fn gather_fields(&self, own: &[f64]) -> Outcome<Vec<f64>> {
        let ranks = self.ranks;
        // Never freed after an error, as the network may still write to them.
        let mut all = ManuallyDrop::new(vec![0.0; own.len() * ranks.world()]);
        all[ranks.rank() * own.len()..][..own.len()].copy_from_slice(own);
        ranks.collective.all_gather(&mut all, ranks.deadline())?;
        Ok(ManuallyDrop::into_inner(all))
    }

    /// Adds up gradients that nobody reduces. Their traffic is not that of training.
    fn recompute(&mut self, which: MicroBatches) -> Outcome<()> {
        self.gather_first_weights()?;
        self.clock.enter(Phase::Other);
        self.tallies.get_mut().count(false);
        self.accumulate_gradients(which, true)?;
        self.gather_first_weights()?; // not counted again
        self.tallies.get_mut().count(true);
        Ok(())
    }

    fn gather_first_weights(&mut self) -> Outcome<()> {
        let Self { state, dimensions, clock, tallies, .. } = self;
        state.gather_first(Waits { tallies, clock, dimensions: *dimensions })
    }

    /// Computes what a step's checks need before its own gradients.
    pub(super) fn recompute_for(&mut self, checks: Checks) -> Outcome<()> {
        let Some(shift) = checks.shift else { return Ok(()) };
        let rank = self.verifier.partners.checked_by(self.ranks.rank(), shift);
        self.recompute(MicroBatches::OfRank(rank))
    }

    /// Compares the votes of a step, and computes it again if they do not fit.
    ///
    /// # Errors
    /// Exit code 4 unless the repetition has repaired the step.
    pub(super) fn verify(&mut self, checks: Checks, requests: Requests) -> Outcome<()> {
        let step = self.state.progress.step + 1;
        let recomputes = self.verifier.config.recompute_every_steps > 0;
        let is_finite = self.votes.is_finite();
        if !is_finite && !recomputes {
            return self.require_finite();
        }
        if checks.replicas && self.verifier.partners.has_replicas() {
            self.verifier.record.checks += 1;
            let replica = |rank| self.votes.of(rank).replica;
            if let Some(blame) = self.verifier.partners.differing_replica(replica) {
                return self.verifier.find(step, &blame, None);
            }
        }
        let compared = usize::from(!self.ranks.is_alone()) + usize::from(checks.shift.is_some());
        self.verifier.record.checks += compared as u64;
        let is_doubtful = !is_finite || self.verifier.partners.is_doubtful(&self.votes, checks);
        if !is_doubtful && (!checks.suspects || !self.suspects(step)) {
            return Ok(());
        }
        let votes = self.votes.clone();
        let buckets = self.bucket_sums();
        let again = Checks {
            replicas: false,
            shift: recomputes.then(|| checks.shift.unwrap_or(step as usize) + 1),
            suspects: false,
            is_repeat: true,
        };
        self.compute(again, || requests)?;
        self.require_finite()?;
        let before = Judged { votes: &votes, checks };
        let after = Judged { votes: &self.votes, checks: again };
        let Some(blame) = self.verifier.partners.judge(before, after) else { return Ok(()) };
        let bucket = match blame.evidence {
            Some(evidence) => self.bucket_of(evidence, &buckets)?,
            None => None,
        };
        self.verifier.find(step, &blame, bucket)
    }

    /// Returns whether unusual gradients are a reason to compute a step again: at most once in the
    /// interval of scheduled checks.
    fn suspects(&mut self, step: u64) -> bool {
        let every = self.verifier.config.recompute_every_steps;
        let is_early = self.verifier.suspected.is_some_and(|last| step < last + every);
        if every == 0 || is_early || !is_suspicious(&self.votes) {
            return false;
        }
        self.verifier.suspected = Some(step);
        true
    }

    /// Returns the sums of this rank over each bucket.
    fn bucket_sums(&self) -> Vec<BucketSums> {
        // On a single rank the reduced gradients are the local ones, which may not be added up.
        let local = if self.ranks.is_alone() { Of::Reduced } else { Of::Local };
        let of = |bucket| BucketSums {
            local: self.scalars.of_bucket(bucket, local),
            reduced: self.scalars.of_bucket(bucket, Of::Reduced),
            recomputed: self.scalars.of_bucket(bucket, Of::Recomputed),
        };
        (0..self.state.shard.buckets.len()).map(of).collect()
    }

    /// Returns the tensors of the first bucket in which a wrong sum shows.
    fn bucket_of(&self, evidence: Evidence, before: &[BucketSums]) -> Outcome<Option<String>> {
        let after = self.bucket_sums();
        for (index, rounds) in before.iter().zip(&after).enumerate() {
            let own = [rounds.0.encode(), rounds.1.encode()].concat();
            let all = self.gather_fields(&own)?;
            let decode = |fields: &[f64]| -> Rounds {
                let (first, second) = fields.split_at(BucketSums::FIELDS);
                [BucketSums::decode(first), BucketSums::decode(second)]
            };
            let ranks: Vec<Rounds> = all.chunks_exact(own.len()).map(decode).collect();
            if self.verifier.partners.shows(evidence, &ranks) {
                return Ok(Some(self.tensors_of(index)));
            }
        }
        Ok(None)
    }

    /// Returns the names of the first and the last tensor of a bucket.
    fn tensors_of(&self, bucket: usize) -> String {
        let range = &self.state.shard.buckets[bucket].range;
        let tensors = self.state.layout.tensors();
        let is_in = |tensor: &&models::layout::Tensor| range.contains(&tensor.range.start);
        let mut inside = tensors.iter().filter(is_in).map(|tensor| tensor.name.as_str());
        let first = inside.next().unwrap_or("padding");
        match inside.next_back() {
            Some(last) => format!("{first} to {last}"),
            None => first.to_owned(),
        }
    }
}
