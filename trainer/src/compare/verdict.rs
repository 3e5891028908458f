//! Worse, better, the same, or too noisy to say.

use serde::{Deserialize, Serialize};

use super::estimate::Estimate;
use super::metric::Better;

/// What an estimate says about a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// It got worse, by the threshold or more.
    Worse,
    /// It got better, by the threshold or more.
    Better,
    /// Any change is smaller than the threshold.
    Same,
    /// The interval is too wide to say.
    TooNoisy,
}

impl Verdict {
    /// Worse or better if the interval excludes no change and the effect reaches the threshold; the
    /// same if the interval is within the threshold.
    pub(super) fn of(estimate: &Estimate, better: Better, threshold: f64) -> Self {
        let Estimate { effect, low, high } = *estimate;
        let higher = match better {
            Better::Higher => Self::Better,
            Better::Lower => Self::Worse,
        };
        if low > 0.0 && effect >= threshold {
            higher
        } else if high < 0.0 && effect <= -threshold {
            higher.opposite()
        } else if low > -threshold && high < threshold {
            Self::Same
        } else {
            Self::TooNoisy
        }
    }

    fn opposite(self) -> Self {
        if self == Self::Better { Self::Worse } else { Self::Better }
    }

    /// The words in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Worse => "worse",
            Self::Better => "better",
            Self::Same => "same",
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
        let higher = Estimate { effect: -0.05, low: -0.06, high: -0.04 };
        assert_eq!(Verdict::of(&higher, Better::Higher, 0.03), Verdict::Worse);
    }
}
