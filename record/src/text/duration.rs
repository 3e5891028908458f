//! Durations as a user writes them: `90s`, `5m`, `1.5h`, `250ms`.
//!
//! Used as `#[serde(with = "duration")]` on a [`Duration`].

use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;

/// Units and their length in seconds. `ms` precedes `s`, the unit that it ends with.
const UNITS: [(&str, f64); 4] = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// Longest duration: a year. Clocks overflow far above it.
const MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Parses a number and its unit.
///
/// # Errors
/// A text with the expected format.
pub fn parse(text: &str) -> Result<Duration, String> {
    let expected = || format!("{text:?}: expected a duration such as 90s, 5m, 1.5h or 250ms");
    let (number, unit) = UNITS
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)))
        .ok_or_else(expected)?;
    let number = number.trim_end();
    // Refuse a sign, an exponent, `inf` and `nan`, which `f64` would accept.
    if !number.starts_with(|c: char| c.is_ascii_digit())
        || !number.chars().all(|c| c.is_ascii_digit() || c == '.')
    {
        return Err(expected());
    }
    let number: f64 = number.parse().map_err(|_| expected())?;
    Duration::try_from_secs_f64(number * unit)
        .ok()
        .filter(|duration| *duration <= MAX)
        .ok_or_else(|| format!("{text:?}: expected at most a year, 8784h"))
}

/// Formats a duration in the largest unit of which it is a whole number; [`parse`] reads it back.
pub fn format(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos();
    for (unit, length) in [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000)] {
        if nanoseconds > 0 && nanoseconds.is_multiple_of(length) {
            return format!("{}{unit}", nanoseconds / length);
        }
    }
    if nanoseconds == 0 { "0s".to_owned() } else { format!("{}ms", nanoseconds as f64 / 1e6) }
}

/// Serializes a duration, for `#[serde(with)]`.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*duration))
}

/// Deserializes a duration, for `#[serde(with)]`.
///
/// # Errors
/// For a text that is no duration.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserializer.deserialize_str(Text)
}

struct Text;

impl Visitor<'_> for Text {
    type Value = Duration;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a duration such as \"90s\", \"5m\", \"1.5h\" or \"250ms\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        parse(text).map_err(E::custom)
    }
}

/// Functions for `#[serde(with)]` on an `Option`, with `default`.
pub mod optional {
    use std::time::Duration;

    use serde::de::Deserializer;
    use serde::ser::Serializer;

    /// Serializes a duration, or none.
    ///
    /// # Errors
    /// Those of the serializer.
    #[allow(clippy::ref_option, reason = "serde calls it so")]
    pub fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => super::serialize(duration, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Deserializes a duration that is present.
    ///
    /// # Errors
    /// For a text that is no duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        super::deserialize(deserializer).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read() {
        for (text, milliseconds) in [
            ("90s", 90_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1.5h", 5_400_000),
            ("500ms", 500),
            ("0.25s", 250),
            ("5 m", 300_000),
            ("0s", 0),
            ("8784h", 366 * 86_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        assert_eq!(parse("0.001ms"), Ok(Duration::from_micros(1)));
    }

    #[test]
    fn what_is_no_duration_gets_an_example() {
        for text in
            ["", "90", "0", "s", "ms", "-1s", "+1s", "1e3s", "NaNs", "infs", ".s", "1.2.3s", " 5s"]
        {
            let error = parse(text).unwrap_err();
            assert!(error.contains("expected a duration such as 90s, 5m"), "{text}: {error}");
        }
        for text in ["5minutes", "1d", "1h30m", "50steps", "soon"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("expected a duration such as 90s, 5m"), "{text}: {error}");
        }
    }

    #[test]
    fn more_than_a_year_is_refused() {
        let digits = format!("{}s", "9".repeat(400));
        for text in ["8785h", "99999999999999999999s", &digits] {
            assert!(parse(text).unwrap_err().contains("at most a year"), "{text}");
        }
    }

    #[test]
    fn written_in_the_largest_whole_unit() {
        for (text, written) in [
            ("90s", "90s"),
            ("120s", "2m"),
            ("600s", "10m"),
            ("1.5h", "90m"),
            ("3600s", "1h"),
            ("0.25s", "250ms"),
            ("1.5s", "1500ms"),
            ("0.001ms", "0.001ms"),
            ("0h", "0s"),
        ] {
            assert_eq!(format(parse(text).unwrap()), written, "{text}");
            assert_eq!(parse(written), parse(text), "{text}");
        }
    }
}
