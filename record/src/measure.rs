//! Calculates the figures of a record from the steps of the run.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::goodput::clock_anomalies;
use crate::phase::{ByPhase, Phase, PhaseTimes};
use crate::record::Record;
use crate::sections::{
    Anomaly, Checkpoints, Clocks, Collectives, Fingerprint, FlopsPerToken, Goodput, MfuMeasured,
    PhaseSummary, PromotedTo, Rate, Saves, StepsSummary, TargetRecord,
};
use crate::statistics::{Distribution, Histogram};
use crate::steps::{MeasuredSteps, SampledStep, StepBlock, StepSeries, TargetLoss};
use crate::sum_order::SumOrder;
use crate::text::number_format::count;
use crate::weights_digest::WeightsDigest;

/// Reference values for measurements; `None` where unknown.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference {
    /// FLOPs of training on one token.
    pub flops_per_token: Option<FlopsPerToken>,
    /// Matmul rate measured on one rank's device in this run, FLOP/s.
    pub matmul_flops_per_second: Option<f64>,
    /// Published peak of one rank's device, FLOP/s; never an estimate.
    pub peak_flops_per_second: Option<f64>,
    /// Smallest mean loss that any model can reach, nats per token.
    pub entropy_floor: Option<f64>,
}

/// A rate of the model's FLOPs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlopsPerSecond {
    /// Rate with attention counted causal.
    pub causal: f64,
    /// Rate with attention counted full, as in published tables of Llama.
    pub full: f64,
}

impl Record {
    /// Fills in the figures that follow from the steps: `steps`, `phases`, `tokens_per_second`,
    /// `rank_flops_per_second`, `mfu_*`, `goodput` and `fingerprint`. Without steps they stay
    /// `null`; `goodput` also needs the last attempt to have ended.
    ///
    /// `weights` is the digest of the final weights.
    pub fn measure(
        &mut self,
        series: &StepSeries,
        reference: &Reference,
        weights: Option<WeightsDigest>,
    ) {
        self.steps = StepsSummary::of(series, reference);
        if self.steps.is_none() {
            return;
        }
        let attempt = series.last.map_or(0, |last| last.attempt);
        let measured = self.attempts.iter().find(|other| other.number == attempt);
        let world = measured.map_or(series.world, |attempt| attempt.world);
        let rates = Clocks::of(series.measured(), world);
        // Matmul rate and peak are of this attempt; others may have run on other machines.
        let is_last = self.attempts.last().is_none_or(|last| last.number == attempt);
        self.phases = Some(phases(series.measured()));
        self.tokens_per_second = Some(rates);
        if let Some(flops) = reference.flops_per_token {
            let [causal, full] =
                [flops.causal, flops.full].map(|flops| rates.step.per_rank * flops);
            self.rank_flops_per_second = Some(FlopsPerSecond { causal, full });
            let peak = reference.peak_flops_per_second.filter(|_| is_last);
            self.mfu_causal = peak.map(|peak| causal / peak);
            self.mfu_full = peak.map(|peak| full / peak);
            let matmul = reference.matmul_flops_per_second.filter(|_| is_last);
            self.mfu_measured = matmul.map(|matmul| MfuMeasured {
                causal: causal / matmul,
                full: full / matmul,
                matmul_flops_per_second: matmul,
            });
        }
        self.goodput = Goodput::of(self, series);
        self.anomalies.extend(clock_anomalies(&self.attempts));
        if series.delayed_steps > 0 {
            let delayed = count(series.delayed_steps as usize, "step");
            let text = format!("slow writes to the run's folder delayed {delayed}");
            self.anomalies.push(Anomaly { step: None, rank: None, text });
        }
        self.fingerprint = Some(Fingerprint::of(series, weights, &SumOrder::of(self)));
    }
}

/// Maximum number of entries of a record's series of steps.
const SERIES_BLOCKS_MAX: usize = 256;

/// Maximum number of checkpoints that a record lists.
const SAVED_MAX: usize = 256;

/// Number of bins of a record's histogram of step times.
const HISTOGRAM_BINS: usize = 40;

impl StepsSummary {
    fn of(series: &StepSeries, reference: &Reference) -> Option<Self> {
        let first = series.first?;
        let last = series.last?;
        let measured = series.measured();
        let finite = |value: f64| Some(value).filter(|value| value.is_finite());
        Some(Self {
            completed: last.step,
            recorded: series.recorded,
            warmup: measured.warmup_steps,
            measured: measured.steps(),
            is_steady: measured.is_steady,
            tokens: series.tokens,
            loss_first: finite(first.loss),
            loss_last: finite(last.loss),
            evaluation_loss_last: series.evaluation_loss_last.and_then(finite),
            entropy_floor: reference.entropy_floor,
            flops_per_token: reference.flops_per_token,
            step_ms: measured.phases_ms(PhaseTimes::step_ns)?,
            wall_ms: measured.phases_ms(PhaseTimes::wall_ns)?,
            histogram: Histogram::of(measured.step_times_ms(), HISTOGRAM_BINS)?,
            series: series.summarized(SERIES_BLOCKS_MAX),
        })
    }
}

impl MeasuredSteps<'_> {
    fn sum(&self, of: impl Fn(&StepBlock) -> u64) -> u64 {
        self.blocks.iter().map(of).sum()
    }

    fn seconds(&self, nanoseconds: impl Fn(&PhaseTimes) -> u64) -> f64 {
        self.sum(|block| nanoseconds(&block.phases_ns)) as f64 / 1e9
    }

    pub(super) fn steps(&self) -> u64 {
        self.sum(|block| block.steps)
    }

    /// Distribution over single steps.
    fn distribution(&self, of: impl Fn(&SampledStep) -> f64) -> Option<Distribution> {
        Distribution::of(self.blocks.iter().filter_map(|block| block.sampled.as_ref()).map(of))
    }

    fn phases_ms(&self, nanoseconds: impl Fn(&PhaseTimes) -> u64) -> Option<Distribution> {
        self.distribution(|step| nanoseconds(&step.phases_ns) as f64 / 1e6)
    }

    /// Times of single steps, without checkpoints and evaluations.
    pub fn step_times_ms(&self) -> impl Iterator<Item = f64> + Clone {
        let steps = self.blocks.iter().filter_map(|block| block.sampled.as_ref());
        steps.map(|step| step.phases_ns.step_ns() as f64 / 1e6)
    }
}

fn phases(steps: MeasuredSteps<'_>) -> ByPhase<PhaseSummary> {
    let wall = steps.seconds(PhaseTimes::wall_ns);
    ByPhase::from_fn(|phase: Phase| {
        let spent = steps.seconds(|times| times.get(phase));
        let times = steps.phases_ms(|times| times.get(phase));
        PhaseSummary {
            seconds: spent,
            share: if wall > 0.0 { spent / wall } else { 0.0 },
            median_ms: times.map_or(0.0, |times| times.median),
        }
    })
}

impl Clocks {
    /// Computes rates from total tokens over total time, so that slow steps are weighted by their
    /// time.
    fn of(steps: MeasuredSteps<'_>, world: usize) -> Self {
        let tokens = steps.sum(|block| block.tokens);
        let rate = |seconds: f64| {
            let total = tokens as f64 / seconds.max(1e-9);
            Rate { total, per_rank: total / world as f64 }
        };
        Self {
            step: rate(steps.seconds(PhaseTimes::step_ns)),
            wall: rate(steps.seconds(PhaseTimes::wall_ns)),
        }
    }
}

impl TargetRecord {
    /// Builds the target of a run, with the step that reached it.
    pub fn of(target: TargetLoss, series: &StepSeries) -> Self {
        let reached = series.reached();
        Self {
            nats: target.nats,
            held_out: target.is_held_out,
            step: reached.map(|reached| reached.step),
            seconds: reached.map(|reached| reached.seconds),
        }
    }
}

impl Collectives {
    /// Summarizes communication in the measured steps; `None` without steps.
    pub fn of(
        series: &StepSeries,
        backend: &str,
        library: Option<String>,
        bucket_bytes: u64,
    ) -> Option<Self> {
        let steps = series.measured();
        let bytes = steps.distribution(|step| step.comm_bytes as f64)?;
        let total_ms = steps.distribution(|step| step.comm_total_ns as f64 / 1e6)?;
        let exposed_ms = steps.phases_ms(|times| times.comm_exposed)?;
        let total_ns = steps.sum(|block| block.comm_total_ns);
        let hidden_ns = steps.sum(|block| block.comm_hidden_ns);
        Some(Self {
            backend: backend.to_owned(),
            library,
            bucket_bytes,
            bytes_per_step: bytes.median,
            total_ms,
            exposed_ms,
            hidden_share: if total_ns > 0 { hidden_ns as f64 / total_ns as f64 } else { 0.0 },
            traffic: Vec::new(),
        })
    }
}

impl Checkpoints {
    /// Summarizes size and time of an attempt's checkpoints, and of their copies on farther tiers;
    /// `None` without any.
    pub fn of(saves: &Saves, promoted: Vec<PromotedTo>) -> Option<Self> {
        let Saves { committed: saved, failed, skipped, triggers } = saves;
        let last = saved.last()?;
        let tier = saves.usual_tier()?;
        let on_tier = || saved.iter().filter(|save| save.tier == tier);
        let bytes: u64 = on_tier().map(|save| save.bytes).sum();
        let write_ns: u64 = on_tier().map(|save| save.write_ns).sum();
        Some(Self {
            tier: tier.to_owned(),
            count: saved.len(),
            last_step: last.step,
            skipped: *skipped,
            failed: *failed,
            triggers: triggers.clone(),
            bytes: last.bytes,
            bytes_per_second: bytes as f64 / (write_ns.max(1) as f64 / 1e9),
            save_ms: Distribution::of(on_tier().map(|save| save.save_ns as f64 / 1e6))?,
            stall_ms: Distribution::of(on_tier().map(|save| save.stall_ns as f64 / 1e6))?,
            saved: saved[saved.len().saturating_sub(SAVED_MAX)..].to_vec(),
            cadence: Vec::new(),
            promoted,
        })
    }
}

impl Saves {
    /// Tier that most checkpoints were saved on; the last by name if several have as many.
    fn usual_tier(&self) -> Option<&str> {
        let mut counts = BTreeMap::new();
        for saved in &self.committed {
            *counts.entry(saved.tier.as_str()).or_insert(0_usize) += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(tier, _)| tier)
    }
}

impl Fingerprint {
    fn of(series: &StepSeries, weights: Option<WeightsDigest>, order: &SumOrder) -> Self {
        Self {
            losses: series.losses_digest().to_hex().to_string(),
            weights: weights.map(|digest| digest.to_string()),
            golden: series.golden.as_ref().map(|watch| watch.check(order)),
            not_comparable: series.not_comparable.clone(),
        }
    }
}
