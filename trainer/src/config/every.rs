//! How often something happens: in steps or in seconds.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An interval as the user writes it: `50steps`, `100s` or `never`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "toml::Value")]
pub enum Every {
    /// Not at all.
    #[default]
    Never,
    /// After each multiple of this many steps.
    Steps(u64),
    /// After the first step that ends this many seconds after the last time.
    Seconds(f64),
}

impl FromStr for Every {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("{text:?}: expected an interval such as 50steps, 100s or never");
        if text == "never" {
            return Ok(Self::Never);
        }
        if let Some(steps) = text.strip_suffix("steps") {
            let steps = steps.trim().parse().ok().filter(|&steps| steps > 0);
            return steps.map(Self::Steps).ok_or_else(error);
        }
        let seconds = text.strip_suffix('s').and_then(|number| number.trim().parse().ok());
        seconds
            .filter(|seconds: &f64| *seconds > 0.0 && *seconds <= super::SECONDS_MAX)
            .map(Self::Seconds)
            .ok_or_else(error)
    }
}

impl fmt::Display for Every {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => write!(formatter, "never"),
            Self::Steps(steps) => write!(formatter, "{steps}steps"),
            Self::Seconds(seconds) => write!(formatter, "{seconds}s"),
        }
    }
}

impl TryFrom<toml::Value> for Every {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        value.as_str().map_or_else(|| value.to_string().parse(), str::parse)
    }
}

impl From<Every> for String {
    fn from(every: Every) -> Self {
        every.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for text in ["never", "50steps", "100s", "0.5s"] {
            assert_eq!(text.parse::<Every>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_what_has_no_unit_or_no_size() {
        for text in ["", "50", "0steps", "-1s", "NaNs", "s", "steps", "5 minutes"] {
            let error = text.parse::<Every>().unwrap_err();
            assert!(error.contains("50steps"), "{text}: {error}");
        }
    }
}
