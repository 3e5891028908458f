//! Schedule of the checkpoints of each tier.

use std::time::{Duration, Instant};

use checkpoint::cadence::{FailureRate, optimal_interval};

use super::tiers::Planned;
use crate::tier_set::TierSet;
use record::text::Interval;
use record::{Attempt, CadenceRecord, Status};

/// Initial mean time between failures of one accelerator, before a run has failed: Meta's research
/// clusters (arXiv:2410.21680).
const RANK_MEAN: Duration = Duration::from_secs(50_000 * 3600);

/// Interval until a first save has measured the cost of saves.
const UNMEASURED: Duration = Duration::from_secs(60);

/// Clocks of the tiers; rank 0's decide.
#[derive(Debug)]
pub(crate) struct Cadence {
    tiers: Vec<TierClock>,
    failures: Failures,
}

#[derive(Debug)]
struct TierClock {
    name: &'static str,
    every: Interval,
    last: Option<Instant>,
    /// Cost of the last save to the tier.
    measured: Option<SaveCost>,
}

/// Cost of a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SaveCost {
    /// Time for which training is stopped.
    pub(crate) stall: Duration,
    /// Time from its trigger until it is durable on the tier.
    pub(crate) durable: Duration,
}

/// Failure rate of the job.
#[derive(Debug, Clone, Copy)]
enum Failures {
    /// Mean time from the configuration.
    Given(Duration),
    Observed(FailureRate),
}

impl Failures {
    fn mean(self) -> Duration {
        match self {
            Self::Given(mean) => mean,
            Self::Observed(rate) => rate.mean_time_between_failures(),
        }
    }
}

impl Cadence {
    /// Creates the clocks of a job of `world` ranks; `mean` is the time between its failures, if
    /// known.
    pub(crate) fn new(planned: &[Planned], mean: Option<Duration>, world: usize) -> Self {
        let now = Instant::now();
        let clock = |tier: &Planned| TierClock {
            name: tier.name,
            every: tier.every,
            last: (tier.every != Interval::Auto).then_some(now),
            measured: None,
        };
        let expected = || Failures::Observed(FailureRate::expected(RANK_MEAN / world as u32));
        Self {
            tiers: planned.iter().map(clock).collect(),
            failures: mean.map_or_else(expected, Failures::Given),
        }
    }

    /// Updates the failure rate with the earlier attempts of the run.
    pub(crate) fn observe(&mut self, attempts: &[Attempt]) {
        let Failures::Observed(rate) = &mut self.failures else { return };
        for attempt in attempts {
            let ran = Duration::from_millis(attempt.ran_ms());
            *rate = rate.observe(ran, u32::from(attempt.status == Status::Failed));
        }
    }

    /// Returns the tiers that a checkpoint of this step, counted from 1, must reach. Only rank 0
    /// decides by time.
    pub(crate) fn due(&self, step: u64, rank: usize) -> TierSet {
        let mut due = TierSet::default();
        for (tier, clock) in self.tiers.iter().enumerate() {
            let is_due = match clock.every {
                Interval::Never => false,
                Interval::Steps(steps) => step.is_multiple_of(steps),
                Interval::Time(time) => rank == 0 && clock.has_passed(time),
                Interval::Auto => rank == 0 && clock.has_passed(self.interval(clock)),
            };
            if is_due {
                due.insert(tier);
            }
        }
        due
    }

    /// Restarts the clocks of these tiers.
    pub(crate) fn saved(&mut self, tiers: TierSet) {
        for (tier, clock) in self.tiers.iter_mut().enumerate() {
            if tiers.contains(tier) {
                clock.last = Some(Instant::now());
            }
        }
    }

    /// Records the cost of a save to a tier.
    pub(crate) fn measured(&mut self, tier: usize, cost: SaveCost) {
        self.tiers[tier].measured = Some(cost);
    }

    /// Returns the interval that loses the least time, but at least the duration of a save: one is
    /// in flight at a time.
    fn interval(&self, clock: &TierClock) -> Duration {
        clock.measured.map_or(UNMEASURED, |SaveCost { stall, durable }| {
            optimal_interval(stall, self.failures.mean()).max(durable)
        })
    }

    /// Returns the calculated intervals.
    pub(crate) fn calculated(&self) -> Vec<CadenceRecord> {
        let automatic = self.tiers.iter().filter(|clock| clock.every == Interval::Auto);
        let record = |clock: &TierClock| {
            let SaveCost { stall, durable } = clock.measured?;
            Some(CadenceRecord {
                tier: clock.name.to_owned(),
                interval_seconds: self.interval(clock).as_secs_f64(),
                stall_seconds: stall.as_secs_f64(),
                durable_seconds: durable.as_secs_f64(),
                mean_seconds_between_failures: self.failures.mean().as_secs_f64(),
                is_mean_given: matches!(self.failures, Failures::Given(_)),
            })
        };
        automatic.filter_map(record).collect()
    }
}

impl TierClock {
    fn has_passed(&self, interval: Duration) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= interval)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tiers::planned;
    use super::*;
    use crate::config::CheckpointConfig;
    use crate::config::Variables;

    fn cadence(config: &CheckpointConfig, mean: Option<Duration>) -> Cadence {
        Cadence::new(&planned(config, Variables::default(), Path::new("out"), "run-1"), mean, 4)
    }

    #[test]
    fn each_tier_has_its_own_cadence() {
        let mut config =
            CheckpointConfig { every: Interval::Steps(2), ..CheckpointConfig::default() };
        config.nvme.path = Some("/nvme".to_owned());
        config.shared.every = Some(Interval::Steps(6));
        config.object.path = Some("s3://bucket".to_owned());
        config.object.every = Some(Interval::Time(Duration::from_nanos(1)));
        let mut cadence = cadence(&config, None);
        let due = |cadence: &Cadence, step, rank| cadence.due(step, rank).0;
        assert_eq!([1, 2, 6].map(|step| due(&cadence, step, 1)), [0, 0b001, 0b011]);
        assert_eq!(due(&cadence, 1, 0), 0b100, "rank 0 has the clock");
        cadence.tiers[2].every = Interval::Time(Duration::from_secs(3600));
        cadence.saved(TierSet::ALL);
        assert_eq!(due(&cadence, 1, 0), 0);
    }

    #[test]
    fn an_automatic_interval_follows_from_cost_and_failures() {
        let config = CheckpointConfig { every: Interval::Auto, ..CheckpointConfig::default() };
        let hour = Duration::from_secs(3600);
        let mut cadence = cadence(&config, Some(8 * hour));
        assert_eq!((cadence.due(1, 0).0, cadence.due(1, 1).0), (1, 0), "the first one measures");
        cadence.saved(TierSet::ALL);
        assert!(cadence.due(2, 0).is_empty());
        let seconds = |seconds| Duration::from_secs_f64(seconds);
        let mut interval = |stall, durable| {
            let cost = SaveCost { stall: seconds(stall), durable: seconds(durable) };
            cadence.measured(0, cost);
            cadence.calculated()[0].interval_seconds
        };
        assert!((interval(0.5, 2.0) - 169.4).abs() < 1.0, "sqrt(2 x 0.5 x 28800), less the cost");
        assert_eq!(interval(0.0, 30.0), 30.0, "not before the last one is durable");
    }

    #[test]
    fn failures_of_earlier_attempts_shorten_it() {
        let config = CheckpointConfig { every: Interval::Auto, ..CheckpointConfig::default() };
        let mean = |attempts: &[Attempt]| {
            let mut cadence = cadence(&config, None);
            let second = Duration::from_secs(1);
            cadence.measured(0, SaveCost { stall: second, durable: second });
            cadence.observe(attempts);
            cadence.calculated()[0].mean_seconds_between_failures
        };
        let rank_mean = RANK_MEAN.as_secs_f64();
        assert_eq!(mean(&[]), rank_mean / 4.0);
        let attempts = record::fixtures::finished().attempts;
        let failed: Vec<_> = attempts.iter().filter(|a| a.status == Status::Failed).collect();
        assert_eq!(failed.len(), 1);
        let ran: f64 = attempts.len() as f64 * 2.0;
        assert_eq!(mean(&attempts), (rank_mean / 4.0 + ran) / 2.0);
    }
}
