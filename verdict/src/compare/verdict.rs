//! Verdicts: worse, better, the same, not worse, or too noisy to decide.

use serde::{Deserialize, Serialize};

use super::estimate::Estimate;
use super::metric::Better;

/// Verdict of an estimate of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The metric got worse, by the threshold or more.
    Worse,
    /// The metric got better, by the threshold or more.
    Better,
    /// Any change is smaller than the threshold.
    Same,
    /// The metric did not get worse by the threshold; whether it got better is not certain.
    NotWorse,
    /// The interval is too wide to exclude that the metric got worse.
    TooNoisy,
}

/// Verdicts in the order in which they decide.
const BY_WEIGHT: [Verdict; 5] =
    [Verdict::Worse, Verdict::TooNoisy, Verdict::NotWorse, Verdict::Better, Verdict::Same];

impl Verdict {
    /// Decides worse or better if the interval excludes no change and the effect reaches the
    /// threshold; the same if the interval is within the threshold; not worse if it excludes the
    /// threshold on the worse side.
    pub(super) fn of(estimate: &Estimate, better: Better, threshold: f64) -> Self {
        // Oriented so that more is better.
        let Estimate { effect, low, high } = match better {
            Better::Higher => *estimate,
            Better::Lower => estimate.negated(),
        };
        if high < 0.0 && effect <= -threshold {
            Self::Worse
        } else if low > 0.0 && effect >= threshold {
            Self::Better
        } else if low > -threshold && high < threshold {
            Self::Same
        } else if low > -threshold {
            Self::NotWorse
        } else {
            Self::TooNoisy
        }
    }

    /// Rank of the verdict: the lowest decides first.
    pub(super) fn weight(self) -> usize {
        BY_WEIGHT.iter().position(|it| *it == self).unwrap_or(BY_WEIGHT.len())
    }

    /// Returns whether a gate may let it pass.
    pub(super) fn passes(self) -> bool {
        !matches!(self, Self::Worse | Self::TooNoisy)
    }

    /// Name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Worse => "worse",
            Self::Better => "better",
            Self::Same => "same",
            Self::NotWorse => "not worse",
            Self::TooNoisy => "too noisy",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_a_large_effect_and_a_narrow_interval() {
        let verdict =
            |effect, low, high| Verdict::of(&Estimate { effect, low, high }, Better::Lower, 0.03);
        assert_eq!(verdict(0.05, 0.01, 0.09), Verdict::Worse);
        assert_eq!(verdict(0.05, -0.01, 0.11), Verdict::TooNoisy);
        assert_eq!(verdict(0.02, 0.01, 0.029), Verdict::Same, "certain, and too small to matter");
        assert_eq!(verdict(0.02, 0.01, 0.031), Verdict::TooNoisy);
        assert_eq!(verdict(0.0, -0.029, 0.029), Verdict::Same);
        assert_eq!(verdict(-0.05, -0.09, -0.01), Verdict::Better);
        assert_eq!(verdict(-0.05, -0.2, 0.029), Verdict::NotWorse);
        assert_eq!(verdict(-0.05, -0.2, 0.031), Verdict::TooNoisy);
        let higher = Estimate { effect: -0.05, low: -0.06, high: -0.04 };
        assert_eq!(Verdict::of(&higher, Better::Higher, 0.03), Verdict::Worse);
        let unknown = Estimate { effect: f64::NAN, low: f64::NAN, high: f64::NAN };
        assert_eq!(Verdict::of(&unknown, Better::Higher, 0.03), Verdict::TooNoisy);
    }
}
