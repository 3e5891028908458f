//! What of a record is compared.

use record::Record;
use record::phase::Phase;
use record::statistics::percentile;

/// A figure of records.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Metric {
    /// Its name, as on the command line.
    pub(super) name: String,
    /// The unit of its values.
    pub(super) unit: &'static str,
    pub(super) better: Better,
    pub(super) scale: Scale,
    pub(super) noise: Noise,
    figure: Figure,
}

/// Which direction is an improvement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Better {
    Higher,
    Lower,
}

/// What a change is relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// The base value.
    Itself,
    /// The time of the base's steps: a phase that takes nothing may take twice nothing.
    StepTime,
}

/// How the values of the same machine vary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Noise {
    /// As steps are, for which there is a deviation on file.
    OfSteps,
    /// As storage and networks are, for which there is none.
    OfTransfers,
}

#[derive(Debug, Clone, PartialEq)]
enum Figure {
    TokensPerSecond,
    StepTime,
    SlowestRank,
    Phase(Phase),
    Communication,
    CheckpointRate,
    CheckpointStall,
    CopyRate(String),
    RestoreTime,
    Energy,
}

/// The metric that is gated unless others are.
pub(super) const PRIMARY: &str = "tokens_per_second";

/// Every metric that these records could have, the primary one first.
pub(super) fn metrics<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<Metric> {
    let new = |name: &str, unit, better, figure| Metric {
        name: name.to_owned(),
        unit,
        better,
        scale: Scale::Itself,
        noise: Noise::OfSteps,
        figure,
    };
    let of_transfers = |metric: Metric| Metric { noise: Noise::OfTransfers, ..metric };
    let mut metrics = vec![
        new(PRIMARY, "tokens/s", Better::Higher, Figure::TokensPerSecond),
        new("step_ms", "ms", Better::Lower, Figure::StepTime),
        new("slowest_rank", "ms", Better::Lower, Figure::SlowestRank),
    ];
    metrics.extend(Phase::ALL.map(|phase| Metric {
        scale: Scale::StepTime,
        ..new(phase.name(), "ms per step", Better::Lower, Figure::Phase(phase))
    }));
    metrics.extend([
        of_transfers(new("comm_rate", "B/s", Better::Higher, Figure::Communication)),
        of_transfers(new("checkpoint_rate", "B/s", Better::Higher, Figure::CheckpointRate)),
        of_transfers(new("checkpoint_stall", "ms", Better::Lower, Figure::CheckpointStall)),
    ]);
    let mut tiers: Vec<&str> = records
        .filter_map(|record| record.checkpoints.as_ref())
        .flat_map(|checkpoints| checkpoints.promoted.iter().map(|tier| tier.tier.as_str()))
        .collect();
    tiers.sort_unstable();
    tiers.dedup();
    metrics.extend(tiers.into_iter().map(|tier| {
        let name = format!("{COPY_RATE}{tier}");
        of_transfers(new(&name, "B/s", Better::Higher, Figure::CopyRate(tier.to_owned())))
    }));
    metrics.push(of_transfers(new("restore_seconds", "s", Better::Lower, Figure::RestoreTime)));
    metrics.push(new("gpu_joules_per_token", "J", Better::Lower, Figure::Energy));
    metrics
}

/// Whether this is the name of a metric; those of copies have the name of a tier.
pub(super) fn is_known(name: &str) -> bool {
    name.starts_with(COPY_RATE) || metrics(std::iter::empty()).iter().any(|it| it.name == name)
}

const COPY_RATE: &str = "copy_rate_";

impl Metric {
    /// Its value in a record, if it is one that can be compared.
    pub(super) fn usable(&self, record: &Record) -> Option<f64> {
        let is_usable = |value: &f64| match self.scale {
            Scale::Itself => value.is_finite() && *value > 0.0,
            Scale::StepTime => value.is_finite() && *value >= 0.0,
        };
        self.value(record).filter(is_usable)
    }

    /// Its value in a record; `None` where the record does not have it.
    pub(super) fn value(&self, record: &Record) -> Option<f64> {
        match &self.figure {
            Figure::TokensPerSecond => Some(record.tokens_per_second?.step.total),
            Figure::StepTime => mean_step_ms(record),
            Figure::SlowestRank => {
                let own = (0..record.ranks.len()).filter_map(|rank| own_ms(record, rank));
                own.reduce(f64::max)
            }
            Figure::Phase(phase) => {
                let steps = record.steps.as_ref()?.measured as f64;
                Some(record.phases?.get(*phase).seconds * 1e3 / steps)
            }
            Figure::Communication => {
                let collectives = record.collectives.as_ref()?;
                let seconds = collectives.total_ms.median / 1e3;
                (seconds > 0.0).then(|| collectives.bytes_per_step / seconds)
            }
            Figure::CheckpointRate => Some(record.checkpoints.as_ref()?.bytes_per_second),
            Figure::CheckpointStall => Some(record.checkpoints.as_ref()?.stall_ms.mean),
            Figure::CopyRate(tier) => {
                let promoted = &record.checkpoints.as_ref()?.promoted;
                promoted.iter().find(|to| to.tier == *tier)?.bytes_per_second
            }
            Figure::RestoreTime => Some(record.attempts.last()?.recovery.as_ref()?.seconds),
            Figure::Energy => record.energy?.gpu_joules_per_token,
        }
    }
}

/// What a rank needs for its own part of a step, without waiting for others: the median of the
/// blocks of its last attempt.
pub(super) fn own_ms(record: &Record, rank: usize) -> Option<f64> {
    let mut own = record.ranks.get(rank)?.times.as_ref()?.own_ms.clone();
    own.sort_by(f64::total_cmp);
    percentile(&own, 50.0)
}

/// Milliseconds of a measured step without checkpoints and evaluation, on average.
pub(super) fn mean_step_ms(record: &Record) -> Option<f64> {
    Some(record.steps.as_ref()?.step_ms.mean)
}
