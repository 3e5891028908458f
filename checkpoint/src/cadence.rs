//! Interval between saves that loses least time to saves and to repeated work.
//!
//! J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
//! Future Generation Computer Systems 22 (2006), 303-312. Failures are independent and arrive at
//! a constant rate. A save costs the time for which it stops training, and an interval is the time
//! of training between the end of one save and the start of the next.

use std::time::Duration;

/// The optimal interval between saves: Daly's equation 37, of which J. W. Young's
/// `sqrt(2 C M)` (1974) is the first term. Where a save costs twice the mean time between failures
/// or more, it is that mean: the expansion does not hold there, and nothing can help much.
///
/// Zero where a save costs nothing: the caller has its own lower limit, such as the time until a
/// save is durable.
pub fn optimal_interval(save_cost: Duration, mean_time_between_failures: Duration) -> Duration {
    let cost = save_cost.as_secs_f64();
    let mean = mean_time_between_failures.as_secs_f64();
    if cost >= 2.0 * mean {
        return mean_time_between_failures;
    }
    let ratio = cost / (2.0 * mean);
    let seconds = (2.0 * cost * mean).sqrt() * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - cost;
    saturating(seconds)
}

/// Share of time that becomes progress: Daly's equation 20, which is exact for failures that also
/// strike during saves and restarts. `restart` is the time from a failure until training resumes.
///
/// # Panics
/// When the interval or the mean is zero.
pub fn expected_goodput(
    interval: Duration,
    save_cost: Duration,
    restart: Duration,
    mean_time_between_failures: Duration,
) -> f64 {
    let mean = mean_time_between_failures.as_secs_f64();
    let segment = (interval + save_cost).as_secs_f64() / mean;
    let useful = interval.as_secs_f64() / mean;
    assert!(useful > 0.0 && useful.is_finite(), "interval and mean are positive");
    useful / ((restart.as_secs_f64() / mean).exp() * segment.exp_m1())
}

/// The mean time between failures, from what a run has seen of them.
///
/// The failure rate has a Gamma prior with the weight of one failure: the estimate starts at the
/// expected mean, moves with the first failures, and is finite in a run that has seen none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureRate {
    expected: Duration,
    observed: Duration,
    failures: u32,
}

impl FailureRate {
    /// Starts from the mean that is expected of such a job, before any failure is observed.
    pub fn expected(mean_time_between_failures: Duration) -> Self {
        Self { expected: mean_time_between_failures, observed: Duration::ZERO, failures: 0 }
    }

    /// Adds a time in which the job ran, and how many failures ended parts of it.
    #[must_use]
    pub fn observe(self, ran: Duration, failures: u32) -> Self {
        Self {
            observed: self.observed.saturating_add(ran),
            failures: self.failures.saturating_add(failures),
            ..self
        }
    }

    /// The posterior: all time, the prior's too, divided by all failures.
    pub fn mean_time_between_failures(&self) -> Duration {
        let time = self.expected.as_secs_f64() + self.observed.as_secs_f64();
        saturating(time / (1.0 + f64::from(self.failures)))
    }
}

fn saturating(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: f64 = 3600.0;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn daly(cost: f64, mean: f64) -> f64 {
        optimal_interval(seconds(cost), seconds(mean)).as_secs_f64()
    }

    /// The sum of Daly's three terms, worked out by hand: for a cost of 120 s and 1.8 h, Young's
    /// 1247.1 s, times 1 + 0.032075 + 0.001029, less 120 s.
    #[test]
    fn worked_examples() {
        assert!((daly(120.0, 1.8 * HOUR) - 1168.36).abs() < 0.05);
        assert!((daly(0.5, 7.9 * HOUR) - 168.31).abs() < 0.05);
    }

    /// The formula is compared with the optimum of the exact expression, found by search.
    #[test]
    fn no_other_interval_has_a_better_goodput() {
        for mean in [60.0, 14.0 * 60.0, 1.8 * HOUR, 7.9 * HOUR] {
            for cost in [0.01, 0.5, 2.0, 27.0] {
                let goodput = |interval: f64| {
                    let restart = seconds(90.0);
                    expected_goodput(seconds(interval), seconds(cost), restart, seconds(mean))
                };
                let found = goodput(daly(cost, mean));
                let best = (1..4000)
                    .map(|step| goodput(mean * 1.005_f64.powi(step - 3500)))
                    .fold(0.0, f64::max);
                assert!(found > best * 0.9999, "{cost} {mean}: {found} {best}");
            }
        }
    }

    #[test]
    fn limits() {
        let hour = seconds(HOUR);
        assert_eq!(optimal_interval(Duration::ZERO, hour), Duration::ZERO);
        assert_eq!(optimal_interval(2 * hour, hour), hour);
        assert_eq!(optimal_interval(hour, Duration::ZERO), Duration::ZERO);
        let below = daly(1.999 * HOUR, HOUR);
        assert!((below / HOUR - 1.0).abs() < 0.5, "{below}");
    }

    #[test]
    fn a_failure_rate_moves_from_what_is_expected_to_what_is_seen() {
        let hour = seconds(HOUR);
        let prior = FailureRate::expected(4 * hour);
        assert_eq!(prior.mean_time_between_failures(), 4 * hour);
        assert_eq!(prior.observe(6 * hour, 0).mean_time_between_failures(), 10 * hour);
        assert_eq!(prior.observe(hour, 1).observe(hour, 1).mean_time_between_failures(), 2 * hour);
        let long = prior.observe(1000 * hour, 500).mean_time_between_failures();
        assert!((long.as_secs_f64() / HOUR - 2.0).abs() < 0.01, "{long:?}");
        let endless = FailureRate::expected(Duration::MAX).observe(Duration::MAX, 0);
        assert_eq!(endless.mean_time_between_failures(), Duration::MAX);
    }
}
