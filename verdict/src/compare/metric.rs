//! Figures of a record that are compared.

use record::Record;
use record::phase::Phase;
use record::statistics::percentile;

/// Figure of records.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Metric {
    /// Name, as on the command line.
    pub(super) name: String,
    /// Unit of its values.
    pub(super) unit: &'static str,
    pub(super) better: Better,
    pub(super) scale: Scale,
    pub(super) noise: Noise,
    figure: Figure,
}

/// Direction of an improvement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Better {
    Higher,
    Lower,
}

/// Reference of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Base value.
    Itself,
    /// Time of the base's steps: a phase that takes no time may take twice no time.
    StepTime,
}

/// Variation of a metric on the same machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Noise {
    /// Variation of steps, for which there is a deviation on file.
    OfSteps,
    /// Variation of storage and networks, for which there is none.
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

/// Metric that is gated by default.
pub(super) const PRIMARY: &str = "tokens_per_second";

/// Lists every metric that these records could have, the primary one first.
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

/// Returns whether this is the name of a metric; metrics of copies contain the name of a tier.
pub(super) fn is_known(name: &str) -> bool {
    name.starts_with(COPY_RATE) || metrics(std::iter::empty()).iter().any(|it| it.name == name)
}

const COPY_RATE: &str = "copy_rate_";

impl Metric {
    /// Returns its value in a record, if it can be compared.
    pub(super) fn usable(&self, record: &Record) -> Option<f64> {
        let is_usable = |value: &f64| match self.scale {
            Scale::Itself => value.is_finite() && *value > 0.0,
            Scale::StepTime => value.is_finite() && *value >= 0.0,
        };
        self.value(record).filter(is_usable)
    }

    /// Returns its value in a record; `None` if the record does not have it.
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

/// Time of a rank's own part of a step, without waiting for other ranks: the median of the blocks
/// of its last attempt.
pub(super) fn own_ms(record: &Record, rank: usize) -> Option<f64> {
    let mut own = record.ranks.get(rank)?.times.as_ref()?.own_ms.clone();
    own.sort_by(f64::total_cmp);
    percentile(&own, 50.0)
}

/// Mean milliseconds of a measured step without checkpoints and evaluation.
pub(super) fn mean_step_ms(record: &Record) -> Option<f64> {
    Some(record.steps.as_ref()?.step_ms.mean)
}
