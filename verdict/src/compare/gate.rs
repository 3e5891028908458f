//! Metrics that decide.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::metric::{PRIMARY, is_known, metrics};

/// Metric that decides, with its own threshold or the common one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// Name of the metric.
    pub metric: String,
    /// Threshold below which a relative change does not matter.
    pub threshold: Option<f64>,
}

impl Gate {
    /// Returns the default gate of a comparison.
    pub fn primary() -> Self {
        Self { metric: PRIMARY.to_owned(), threshold: None }
    }
}

impl FromStr for Gate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (metric, threshold) = match text.split_once('=') {
            Some((metric, threshold)) => (metric, Some(share(threshold)?)),
            None => (text, None),
        };
        require_known(metric)?;
        Ok(Self { metric: metric.to_owned(), threshold })
    }
}

fn require_known(name: &str) -> Result<(), String> {
    if is_known(name) {
        return Ok(());
    }
    let known = metrics(std::iter::empty());
    let names: Vec<_> = known.iter().map(|metric| metric.name.as_str()).collect();
    Err(format!("expected one of {} or copy_rate_TIER", names.join(", ")))
}

/// Parses a share, such as `3%` or `0.03`.
///
/// # Errors
/// A sentence for an invalid share.
pub fn share(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 0.01));
    let share = number.trim().parse::<f64>().ok().map(|number| number * unit);
    let share = share.filter(|share| share.is_finite() && (0.0..1.0).contains(share));
    share.ok_or_else(|| format!("{text:?}: expected a share, as in 3%"))
}
