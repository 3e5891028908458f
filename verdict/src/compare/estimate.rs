//! Ratio of new values to base values, with an interval.

use serde::Serialize;

use record::student::quantile;

/// An effect with its interval: 0.05 is five percent more than the base.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// New value over the base value, minus one.
    pub effect: f64,
    /// Lower end of the interval; infinite, in JSON `null`, if the variance is unknown.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Independent values of equal weight: one for each session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Samples<'values> {
    pub(super) base: &'values [f64],
    pub(super) new: &'values [f64],
}

/// Number of pairs of which one is trimmed at each end.
const PAIRS_PER_TRIMMED: usize = 8;

impl Estimate {
    fn around(effect: f64, margin: f64) -> Self {
        Self { effect, low: effect - margin, high: effect + margin }
    }

    /// Returns the effect with an infinite interval.
    pub(super) fn unknown(self) -> Self {
        Self { low: f64::NEG_INFINITY, high: f64::INFINITY, ..self }
    }

    /// Returns the effect in the other direction.
    pub(super) fn negated(self) -> Self {
        Self { effect: -self.effect, low: -self.high, high: -self.low }
    }

    /// Converts an effect on logarithms to one on the values.
    pub(super) fn exponential(self) -> Self {
        let [effect, low, high] = [self.effect, self.low, self.high].map(libm::expm1);
        Self { effect, low, high }
    }

    /// Estimates the difference of means, by Student's t with the pooled variance of both sides.
    /// `None` unless a side has several values.
    pub(super) fn unpaired(samples: Samples<'_>, error_rate: f64) -> Option<Self> {
        let Samples { base, new } = samples;
        let freedom = (base.len() + new.len()).checked_sub(2).filter(|&freedom| freedom > 0)?;
        let squares = sum_of_squares(base) + sum_of_squares(new);
        let counts = 1.0 / base.len() as f64 + 1.0 / new.len() as f64;
        let error = (squares / freedom as f64 * counts).sqrt();
        let difference = mean(new) - mean(base);
        Some(Self::around(difference, quantile(error_rate, freedom as f64) * error))
    }

    /// Estimates the mean of differences within pairs, of which an eighth is trimmed at each end:
    /// K. K. Yuen, "The two-sample trimmed t for unequal population variances" (1974), for one
    /// sample as in R. R. Wilcox, "Introduction to Robust Estimation and Hypothesis Testing". A
    /// machine that changes its pace within one pair does not decide.
    pub(crate) fn paired(differences: &[f64], error_rate: f64) -> Option<Self> {
        let count = differences.len();
        let trimmed = count / PAIRS_PER_TRIMMED;
        let kept = count - 2 * trimmed;
        let freedom = kept.checked_sub(1).filter(|&freedom| freedom > 0)? as f64;
        let mut sorted = differences.to_vec();
        sorted.sort_by(f64::total_cmp);
        let center = mean(&sorted[trimmed..count - trimmed]);
        let (least, most) = (sorted[trimmed], sorted[count - trimmed - 1]);
        let winsorized: Vec<f64> = sorted.iter().map(|value| value.clamp(least, most)).collect();
        let variance = sum_of_squares(&winsorized) / (count - 1) as f64;
        let share = kept as f64 / count as f64;
        let error = (variance / count as f64).sqrt() / share;
        Some(Self::around(center, quantile(error_rate, freedom) * error))
    }

    /// Estimates the effect of one value against one, where `deviation` is the relative standard
    /// deviation of one value, found in `freedom + 1` runs elsewhere.
    pub(super) fn assumed(effect: f64, deviation: Deviation, error_rate: f64) -> Self {
        let error = deviation.relative * std::f64::consts::SQRT_2;
        Self::around(effect, quantile(error_rate, deviation.freedom) * error)
    }
}

/// Relative standard deviation between sessions that is on file.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Deviation {
    /// Standard deviation relative to the mean.
    pub(super) relative: f64,
    /// Degrees of freedom of the estimate.
    pub(super) freedom: f64,
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Sums the squares of the deviations from the mean.
pub(super) fn sum_of_squares(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean) * (value - mean)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 5e-4, "{found} is not {expected}");
    }

    /// Calculated by hand: the variance of both is (2 + 5) / 5, the error sqrt(1.4 (1/3 + 1/4)),
    /// and the quantile of 5 degrees of freedom 2.5706.
    #[test]
    fn means_are_compared_by_students_t() {
        let (base, new) = ([10.0, 11.0, 12.0], [11.0, 12.0, 13.0, 14.0]);
        let found = Estimate::unpaired(Samples { base: &base, new: &new }, 0.05).unwrap();
        close(found.effect, 1.5);
        close(found.low, 1.5 - 2.3230);
        close(found.high, 1.5 + 2.3230);
        assert_eq!(Estimate::unpaired(Samples { base: &[1.0], new: &[2.0] }, 0.05), None);
    }

    /// Calculated by hand: without the 0 and the 9 the mean is 3; winsorized, the values are 2, 2,
    /// 2, 3, 3, 4, 4 and 4, whose variance is 6 / 7; the error is sqrt(6 / 7 / 8) / 0.75, and the
    /// quantile of 5 degrees of freedom 2.5706.
    #[test]
    fn an_outlier_among_pairs_does_not_count() {
        let found = Estimate::paired(&[3.0, 9.0, 2.0, 3.0, 4.0, 2.0, 0.0, 4.0], 0.05).unwrap();
        close(found.effect, 3.0);
        close(found.high - found.effect, 2.5706 * (6.0_f64 / 56.0).sqrt() / 0.75);
        let wild = Estimate::paired(&[3.0, 9e9, 2.0, 3.0, 4.0, 2.0, 0.0, 4.0], 0.05).unwrap();
        assert_eq!(wild, found);
        assert_eq!(Estimate::paired(&[3.0], 0.05), None);
    }
}
