//! Calculates the figures of a record from the steps of the run.

use super::Record;
use super::sections::{
    Anomaly, Checkpoints, Clocks, Collectives, Fingerprint, FlopsPerToken, Goodput, MfuMeasured,
    PhaseSummary, PromotedTo, Rate, Saves, StepsSummary,
};
use super::steps::{StepSample, StepSeries};
use checkpoint::promotion::RouteStatus;

use crate::timing::phase::{ByPhase, Phase};
use crate::timing::statistics::Distribution;

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

impl Record {
    /// Fills in what can be calculated from the steps: `steps`, `phases`, `tokens_per_second`,
    /// `mfu_*`, `goodput` and `fingerprint`. Without steps they stay `null`; `goodput` also needs
    /// the last attempt to have ended.
    ///
    /// `weights` is the BLAKE3 digest of the final weights.
    pub fn measure(
        &mut self,
        series: &StepSeries,
        reference: &Reference,
        weights: Option<blake3::Hash>,
    ) {
        self.steps = StepsSummary::of(series, reference);
        if self.steps.is_none() {
            return;
        }
        let attempt = series.measured().next().map_or(0, |sample| sample.attempt);
        let measured = self.attempts.iter().find(|other| other.number == attempt);
        let rates = Clocks::of(series, measured.map_or(series.world, |attempt| attempt.world));
        // Matmul rate and peak are of this attempt; others may have run on other machines.
        let is_last = self.attempts.last().is_none_or(|last| last.number == attempt);
        let mfu = |flops_per_token: f64, available: f64| {
            rates.step.per_rank * flops_per_token / available
        };
        self.phases = Some(phases(series));
        self.tokens_per_second = Some(rates);
        if let Some(flops) = reference.flops_per_token {
            let peak = reference.peak_flops_per_second.filter(|_| is_last);
            self.mfu_causal = peak.map(|peak| mfu(flops.causal, peak));
            self.mfu_full = peak.map(|peak| mfu(flops.full, peak));
            let matmul = reference.matmul_flops_per_second.filter(|_| is_last);
            self.mfu_measured = matmul.map(|matmul| MfuMeasured {
                causal: mfu(flops.causal, matmul),
                full: mfu(flops.full, matmul),
                matmul_flops_per_second: matmul,
            });
        }
        self.goodput = Goodput::of(self, series);
        if series.delayed_steps > 0 {
            let delayed = series.delayed_steps;
            let text = format!("{delayed} steps were delayed by slow writes to the run's folder");
            self.anomalies.push(Anomaly { step: None, rank: None, text });
        }
        self.fingerprint = Some(Fingerprint::of(series, weights));
    }
}

impl StepsSummary {
    fn of(series: &StepSeries, reference: &Reference) -> Option<Self> {
        let first = series.samples.first()?;
        let last = series.samples.last()?;
        let finite = |value: f64| Some(value).filter(|value| value.is_finite());
        let mut evaluations = series.samples.iter().filter_map(|sample| sample.evaluation_loss);
        Some(Self {
            completed: last.step,
            recorded: series.samples.len() as u64,
            measured: series.measured().count() as u64,
            tokens: series.samples.iter().map(|sample| sample.tokens).sum(),
            loss_first: finite(first.loss),
            loss_last: finite(last.loss),
            evaluation_loss_last: evaluations.next_back().and_then(finite),
            entropy_floor: reference.entropy_floor,
            flops_per_token: reference.flops_per_token,
            step_ms: distribution_ms(series, |sample| sample.phases.step_ns())?,
            wall_ms: distribution_ms(series, |sample| sample.wall_ns)?,
        })
    }
}

fn distribution_ms(
    series: &StepSeries,
    nanoseconds: impl Fn(&StepSample) -> u64,
) -> Option<Distribution> {
    Distribution::of(series.measured().map(|sample| nanoseconds(sample) as f64 / 1e6))
}

fn seconds<'a>(
    samples: impl Iterator<Item = &'a StepSample>,
    nanoseconds: impl Fn(&StepSample) -> u64,
) -> f64 {
    samples.map(nanoseconds).sum::<u64>() as f64 / 1e9
}

fn phases(series: &StepSeries) -> ByPhase<PhaseSummary> {
    let wall = seconds(series.measured(), |sample| sample.wall_ns);
    ByPhase::from_fn(|phase: Phase| {
        let spent = seconds(series.measured(), |sample| sample.phases.get(phase));
        let times = distribution_ms(series, |sample| sample.phases.get(phase));
        PhaseSummary {
            seconds: spent,
            share: if wall > 0.0 { spent / wall } else { 0.0 },
            median_ms: times.map_or(0.0, |times| times.median),
        }
    })
}

impl Clocks {
    /// Total tokens over total time, so that slow steps are weighted by their time.
    fn of(series: &StepSeries, world: usize) -> Self {
        let tokens: u64 = series.measured().map(|sample| sample.tokens).sum();
        let rate = |seconds: f64| {
            let total = tokens as f64 / seconds.max(1e-9);
            Rate { total, per_rank: total / world as f64 }
        };
        Self {
            step: rate(seconds(series.measured(), |sample| sample.phases.step_ns())),
            wall: rate(seconds(series.measured(), |sample| sample.wall_ns)),
        }
    }
}

impl Collectives {
    /// Communication in the measured steps; `None` without steps.
    pub fn of(
        series: &StepSeries,
        backend: &str,
        library: Option<String>,
        bucket_bytes: u64,
    ) -> Option<Self> {
        let bytes = Distribution::of(series.measured().map(|sample| sample.comm_bytes as f64))?;
        let total_ms = distribution_ms(series, |sample| sample.comm_total_ns)?;
        let exposed_ms = distribution_ms(series, |sample| sample.phases.comm_exposed)?;
        let total = seconds(series.measured(), |sample| sample.comm_total_ns);
        let hidden = seconds(series.measured(), |sample| sample.comm_hidden_ns);
        Some(Self {
            backend: backend.to_owned(),
            library,
            bucket_bytes,
            bytes_per_step: bytes.median,
            total_ms,
            exposed_ms,
            hidden_share: if total > 0.0 { hidden / total } else { 0.0 },
        })
    }
}

impl Checkpoints {
    /// Size and time of the checkpoints saved on a tier, and of their copies on farther ones;
    /// `None` without any.
    pub fn of(saves: &Saves, tier: &str, routes: &[RouteStatus]) -> Option<Self> {
        let Saves { committed: saved, failed, skipped, triggers } = saves;
        let last = saved.last()?;
        let bytes: u64 = saved.iter().map(|save| save.bytes).sum();
        let write_ns: u64 = saved.iter().map(|save| save.write_ns).sum();
        Some(Self {
            tier: tier.to_owned(),
            count: saved.len(),
            last_step: last.step,
            skipped: *skipped,
            failed: *failed,
            triggers: triggers.clone(),
            bytes: last.bytes,
            bytes_per_second: bytes as f64 / (write_ns.max(1) as f64 / 1e9),
            save_ms: Distribution::of(saved.iter().map(|save| save.save_ns as f64 / 1e6))?,
            stall_ms: Distribution::of(saved.iter().map(|save| save.stall_ns as f64 / 1e6))?,
            cadence: Vec::new(),
            promoted: routes.iter().map(PromotedTo::of).collect(),
        })
    }
}

impl PromotedTo {
    fn of(route: &RouteStatus) -> Self {
        let bytes: u64 = route.promoted.iter().map(|promoted| promoted.bytes).sum();
        let seconds = || route.promoted.iter().map(|promoted| promoted.duration.as_secs_f64());
        let total: f64 = seconds().sum();
        Self {
            tier: route.tier.clone(),
            count: route.promoted.len(),
            last_step: route.durable_step,
            bytes_per_second: (total > 0.0).then(|| bytes as f64 / total),
            copy_ms: Distribution::of(seconds().map(|seconds| seconds * 1e3)),
            failures: route.failures,
            last_error: route.last_error.clone(),
            dropped: route.dropped,
        }
    }
}

impl Goodput {
    fn of(record: &Record, series: &StepSeries) -> Option<Self> {
        let start = record.attempts.first()?.started_unix_ms;
        let end = record.attempts.last()?.ended_unix_ms?;
        let elapsed = end.checked_sub(start).filter(|&elapsed| elapsed > 0)? as f64 / 1e3;
        let training = seconds(series.samples.iter(), |sample| sample.phases.step_ns());
        // An attempt that ended before it had restored a checkpoint made no steps and lost none.
        let started = record.attempts.iter().filter(|attempt| attempt.resumed_after_step.is_some());
        let started: Vec<_> = started.collect();
        let lost = started.windows(2).map(|pair| {
            let resumed = pair[1].resumed_after_step.unwrap_or(0);
            pair[0].last_step.saturating_sub(resumed)
        });
        Some(Self {
            elapsed_seconds: elapsed,
            training_seconds: training,
            share: training / elapsed,
            lost_steps: lost.sum(),
        })
    }
}

impl Fingerprint {
    fn of(series: &StepSeries, weights: Option<blake3::Hash>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for sample in &series.samples {
            hasher.update(&sample.loss.to_bits().to_le_bytes());
        }
        Self {
            losses: hasher.finalize().to_hex().to_string(),
            weights: weights.map(|digest| digest.to_hex().to_string()),
        }
    }
}
