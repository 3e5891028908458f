//! Order statistics of measured times.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Percentiles and mean of measurements, in the unit that the field's name states.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Distribution {
    /// 50th percentile.
    pub median: f64,
    /// 5th percentile.
    pub p5: f64,
    /// 95th percentile.
    pub p95: f64,
    /// Arithmetic mean.
    pub mean: f64,
}

impl Distribution {
    /// Computes the distribution of `values`, in any order; `None` without values.
    ///
    /// # Panics
    /// When a value is NaN.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        assert!(sorted.iter().all(|value| !value.is_nan()), "a measurement is NaN");
        sorted.sort_by(f64::total_cmp);
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        Some(Self {
            median: percentile(&sorted, 50.0)?,
            p5: percentile(&sorted, 5.0)?,
            p95: percentile(&sorted, 95.0)?,
            mean,
        })
    }
}

/// Returns the median of values in any order, and leaves them in another one; 0 without values.
pub fn median_of(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let (middle, is_odd) = (values.len() / 2, values.len() % 2 == 1);
    let (lower, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    if is_odd {
        return *upper;
    }
    let below = lower.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (below + *upper) / 2.0
}

/// Standard deviations per median absolute deviation, for a normal distribution.
pub const DEVIATIONS_PER_MAD: f64 = 1.4826;

/// Returns the standard deviation of values by their median absolute deviation, which outliers do
/// not move.
pub fn robust_deviation(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    let middle = median_of(&mut values);
    values.iter_mut().for_each(|value| *value = (*value - middle).abs());
    DEVIATIONS_PER_MAD * median_of(&mut values)
}

/// Histogram of measurements, in the unit that the field's name states.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Histogram {
    /// Lower end of the first bin.
    pub from: f64,
    /// Width of each bin; 0 if all measurements are equal, which are then in one bin.
    pub width: f64,
    /// Number of measurements in each bin; the last bin includes those above it.
    pub counts: Vec<u64>,
}

impl Histogram {
    /// Computes the histogram of `values`, in bins from the minimum to the 99th percentile; `None`
    /// without values.
    pub fn of(values: impl IntoIterator<Item = f64>, bins: usize) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let from = *sorted.first()?;
        let width = (percentile(&sorted, 99.0)? - from) / bins as f64;
        let mut counts = vec![0; if width > 0.0 { bins } else { 1 }];
        for value in sorted {
            let bin = if width > 0.0 { ((value - from) / width) as usize } else { 0 };
            counts[bin.min(bins - 1)] += 1;
        }
        Some(Self { from, width, counts })
    }
}

/// Computes the `percent`-th percentile (0 to 100) of values in ascending order; `None` without
/// values.
///
/// Linear interpolation between the closest ranks, at position `(n - 1) percent / 100` counted
/// from 0: definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996),
/// which is also the default of NumPy and R.
///
/// # Panics
/// When `percent` is outside 0 to 100 or the values are not in ascending order.
pub fn percentile(sorted: &[f64], percent: f64) -> Option<f64> {
    assert!((0.0..=100.0).contains(&percent), "percentile {percent} is outside 0 to 100");
    assert!(sorted.is_sorted(), "percentile of unsorted values");
    let position = sorted.len().checked_sub(1)? as f64 * percent / 100.0;
    let below = position.floor() as usize;
    let above = position.ceil() as usize;
    let fraction = position - below as f64;
    Some(sorted[below] + fraction * (sorted[above] - sorted[below]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_interpolate_between_closest_ranks() {
        let values = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(percentile(&values, 0.0), Some(1.0));
        assert_eq!(percentile(&values, 50.0), Some(2.5));
        assert_eq!(percentile(&values, 75.0), Some(3.25)); // numpy.percentile([1, 2, 3, 4], 75)
        assert_eq!(percentile(&values, 100.0), Some(4.0));
        assert_eq!(percentile(&[7.0], 95.0), Some(7.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn a_distribution_does_not_depend_on_order() {
        let values = [30.0, 10.0, 50.0, 20.0, 40.0];
        let found = Distribution::of(values).unwrap();
        assert_eq!(found, Distribution { median: 30.0, p5: 12.0, p95: 48.0, mean: 30.0 });
        assert_eq!(Distribution::of([]), None);
    }

    #[test]
    fn a_histogram_counts_every_value_once() {
        let found = Histogram::of((0..100).map(f64::from).chain([1e6]), 11).unwrap();
        assert_eq!((found.from, found.width), (0.0, 9.0));
        assert_eq!(found.counts, [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 11]);
        let equal = Histogram { from: 7.0, width: 0.0, counts: vec![3] };
        assert_eq!(Histogram::of([7.0; 3], 5), Some(equal));
        assert_eq!(Histogram::of([], 5), None);
    }

    #[test]
    #[should_panic(expected = "is NaN")]
    fn a_nan_measurement_panics() {
        let _ = Distribution::of([1.0, f64::NAN]);
    }
}
