//! Intervals between events: `50steps`, `5m`, `auto` or `never`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::duration;

/// An interval as a user writes it: `50steps`, a duration such as `5m`, `auto`, or `never`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "toml::Value")]
pub enum Interval {
    /// Never.
    #[default]
    Never,
    /// Steps: after each multiple of this number; not 0.
    Steps(u64),
    /// Time: after the first step that ends this long after the last event; not 0.
    Time(Duration),
    /// Calculated time, from the cost of a save and the failure rate of the job.
    Auto,
}

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = match text.strip_suffix("steps") {
            _ if text == "never" => Some(Self::Never),
            _ if text == "auto" => Some(Self::Auto),
            Some(steps) => {
                steps.trim_end().parse().ok().filter(|&steps| steps > 0).map(Self::Steps)
            }
            None => duration::parse(text).ok().filter(|time| !time.is_zero()).map(Self::Time),
        };
        parsed.ok_or_else(|| {
            format!("{text:?}: expected an interval such as 50steps, 90s, 5m, auto or never")
        })
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => write!(formatter, "never"),
            Self::Auto => write!(formatter, "auto"),
            Self::Steps(steps) => write!(formatter, "{steps}steps"),
            Self::Time(time) => formatter.write_str(&duration::format(*time)),
        }
    }
}

impl TryFrom<toml::Value> for Interval {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        value.as_str().map_or_else(|| value.to_string().parse(), str::parse)
    }
}

impl From<Interval> for String {
    fn from(interval: Interval) -> Self {
        interval.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["never", "auto", "50steps", "100s", "5m", "2h", "500ms"] {
            assert_eq!(text.parse::<Interval>().unwrap().to_string(), text);
        }
        for (text, written) in [("0.5s", "500ms"), ("50 steps", "50steps")] {
            assert_eq!(text.parse::<Interval>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn an_interval_without_unit_or_length_is_refused() {
        for text in ["", "50", "0steps", "0s", "-1s", "NaNs", "s", "steps", "5 minutes", "8785h"] {
            let error = text.parse::<Interval>().unwrap_err();
            assert!(error.contains("50steps"), "{text}: {error}");
        }
    }
}
