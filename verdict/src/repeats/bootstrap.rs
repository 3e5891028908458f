//! Confidence intervals of figures of steps by the bootstrap: it draws repeats, and within each of
//! them blocks of consecutive steps, because each step's time depends on the one before.
//!
//! Blocks: H. R. Kuensch, "The jackknife and the bootstrap for general stationary observations"
//! (1989), circular as by D. N. Politis and J. P. Romano (1992). Their length: E. Carlstein, "The
//! use of subseries values for estimating the variance of a general statistic from a stationary
//! sequence" (1986), for an autoregressive process of order 1.

use record::Random;
use serde::{Deserialize, Serialize};

use record::statistics::percentile;

/// A figure with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Figure of all measured steps.
    pub estimate: f64,
    /// Lower end: the 2.5th percentile of the resampled figures.
    pub low: f64,
    /// Upper end: the 97.5th percentile.
    pub high: f64,
}

/// Number of resamples.
const RESAMPLES: usize = 400;

impl Interval {
    /// Estimates a figure of the steps of all repeats; `None` without steps.
    pub fn of(repeats: &[Vec<f64>], figure: impl Fn(&[f64]) -> f64) -> Option<Self> {
        let all = repeats.concat();
        if repeats.iter().any(Vec::is_empty) || all.is_empty() {
            return None;
        }
        let lengths: Vec<usize> = repeats.iter().map(|steps| block_length(steps)).collect();
        let mut random = Random(all.len() as u64);
        let mut resampled = Vec::with_capacity(all.len());
        let mut figures: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                resampled.clear();
                for _ in repeats {
                    let drawn = random.below(repeats.len());
                    resample(&repeats[drawn], lengths[drawn], &mut random, &mut resampled);
                }
                figure(&resampled)
            })
            .collect();
        figures.sort_by(f64::total_cmp);
        Some(Self {
            estimate: figure(&all),
            low: percentile(&figures, 2.5)?,
            high: percentile(&figures, 97.5)?,
        })
    }
}

/// Draws as many steps as there are, in blocks that begin anywhere and wrap around at the end.
fn resample(steps: &[f64], block: usize, random: &mut Random, into: &mut Vec<f64>) {
    let end = into.len() + steps.len();
    while into.len() < end {
        let start = random.below(steps.len());
        let count = block.min(end - into.len());
        into.extend((start..start + count).map(|index| steps[index % steps.len()]));
    }
}

/// Block length that minimizes the error of the mean's variance.
fn block_length(steps: &[f64]) -> usize {
    let correlation = autocorrelation(steps).clamp(0.0, 0.95);
    let ratio = 6.0_f64.sqrt() * correlation / (1.0 - correlation * correlation);
    let length = libm::pow(ratio, 2.0 / 3.0) * libm::cbrt(steps.len() as f64);
    (length.ceil() as usize).clamp(1, steps.len())
}

/// Correlation of neighbouring steps.
fn autocorrelation(steps: &[f64]) -> f64 {
    let mean = steps.iter().sum::<f64>() / steps.len() as f64;
    let variance: f64 = steps.iter().map(|step| (step - mean) * (step - mean)).sum();
    let covariance: f64 = steps.windows(2).map(|two| (two[0] - mean) * (two[1] - mean)).sum();
    if variance > 0.0 { covariance / variance } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(steps: &[f64]) -> f64 {
        steps.iter().sum::<f64>() / steps.len() as f64
    }

    /// Draws steps of 100 ms on average, each of which depends on the one before.
    fn repeat(random: &mut Random) -> Vec<f64> {
        let mut state = 0.0;
        let mut step = || {
            state = 0.8 * state + 0.6 * random.normal();
            100.0 + 2.0 * state
        };
        (0..200).map(|_| step()).collect()
    }

    /// Checks that with 5 repeats the interval of the mean holds the truth nearly as often as
    /// stated, which intervals that assume independent steps do not.
    #[test]
    fn intervals_hold_the_truth_though_steps_depend_on_each_other() {
        let trials = 100;
        let holds = (0..trials).filter(|seed| {
            let mut random = Random(1_000 + seed);
            let repeats: Vec<_> = (0..5).map(|_| repeat(&mut random)).collect();
            let found = Interval::of(&repeats, mean).unwrap();
            (found.low..found.high).contains(&100.0)
        });
        let holds = holds.count();
        assert!((80..=100).contains(&holds), "{holds} of {trials}");
    }

    #[test]
    fn equal_steps_have_no_interval() {
        let found = Interval::of(&[vec![3.0; 50], vec![3.0; 50]], mean).unwrap();
        assert_eq!(found, Interval { estimate: 3.0, low: 3.0, high: 3.0 });
        assert_eq!(Interval::of(&[vec![]], mean), None);
        assert_eq!(Interval::of(&[], mean), None);
    }
}
