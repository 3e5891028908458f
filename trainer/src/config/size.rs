//! Sizes as a user writes them: `64MiB`, `64M`, `1.5GiB`, `100MB`, or a number of bytes.
//!
//! Used as `#[serde(with = "size")]` on a whole number.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::ser::Serializer;

/// Expected form, for error messages.
const EXPECTED: &str = "a size such as 64MiB, 64M, 1.5GiB or 4096";

/// Units in lower case. As in dd and nccl-tests, a letter alone is a power of 1024.
const UNITS: [(&str, u64); 18] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("ki", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mi", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gi", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("ti", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

/// Parses a number with a unit, in bytes.
///
/// # Errors
/// A message that says what was expected instead.
pub fn parse(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start().to_ascii_lowercase();
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    factor
        .and_then(|factor| product(number, factor))
        .ok_or_else(|| format!("{text:?}: expected {EXPECTED}"))
}

/// Returns the product if it is a whole number: a fraction has as many digits as its unit allows.
fn product(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u64 = whole.parse().ok()?;
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let scaled = fraction.parse::<u64>().ok()?;
    let part = u128::from(scaled).checked_mul(factor.into())?;
    let bytes = u128::from(whole).checked_mul(factor.into())?.checked_add(part / scale)?;
    u64::try_from(bytes).ok().filter(|_| part.is_multiple_of(scale))
}

/// Serializes a size, for `#[serde(with)]`.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<T: Serialize, S: Serializer>(bytes: &T, serializer: S) -> Result<S::Ok, S::Error> {
    bytes.serialize(serializer)
}

/// Deserializes a size, for `#[serde(with)]`.
///
/// # Errors
/// If the value is not a size.
pub fn deserialize<'de, T: TryFrom<u64>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    deserializer.deserialize_any(Size(PhantomData))
}

struct Size<T>(PhantomData<T>);

impl<T: TryFrom<u64>> Visitor<'_> for Size<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(EXPECTED)
    }

    fn visit_u64<E: Error>(self, bytes: u64) -> Result<T, E> {
        bytes.try_into().map_err(|_| E::invalid_value(Unexpected::Unsigned(bytes), &self))
    }

    fn visit_i64<E: Error>(self, bytes: i64) -> Result<T, E> {
        match u64::try_from(bytes) {
            Ok(bytes) => self.visit_u64(bytes),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(bytes), &self)),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        self.visit_u64(parse(text).map_err(E::custom)?)
    }
}

/// Functions for `#[serde(with)]` on an `Option`, with `default`.
pub(crate) mod optional {
    use serde::Serialize;
    use serde::de::Deserializer;
    use serde::ser::Serializer;

    #[allow(clippy::ref_option, reason = "serde calls it so")]
    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        bytes: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, T: TryFrom<u64>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        super::deserialize(deserializer).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Settings};

    #[test]
    fn every_unit_is_read() {
        for (text, bytes) in [
            ("4096", 4096),
            ("7B", 7),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("3KiB", 3 << 10),
            ("3Ki", 3 << 10),
            ("64M", 64 << 20),
            ("64MiB", 64 << 20),
            ("512 MiB", 512 << 20),
            ("64mib", 64 << 20),
            ("100MB", 100_000_000),
            ("80GiB", 80 << 30),
            ("1.5GiB", 3 << 29),
            ("0.25KiB", 256),
            ("1GB", 1_000_000_000),
            ("2TiB", 2 << 40),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn every_setting_that_takes_bytes_takes_a_unit() {
        let sizes = [
            "run.data_cache_bytes=80GiB",
            "collectives.bucket_bytes=64M",
            "checkpoint.staging_bytes=1.5GiB",
            "checkpoint.copy_bytes_per_second_max=500MB",
        ];
        let config = Config::load("smoke", &sizes.map(str::to_owned)).unwrap();
        let Settings { run, collectives, checkpoint, .. } = &config.settings;
        assert_eq!(run.data_cache_bytes, 80 << 30);
        assert_eq!(collectives.bucket_bytes, 64 << 20);
        assert_eq!(checkpoint.staging_bytes, Some(3 << 29));
        assert_eq!(checkpoint.copy_bytes_per_second_max, Some(500_000_000));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), config.to_toml()).unwrap();
        let again = Config::load(&file.path().to_string_lossy(), &[]).unwrap();
        assert_eq!(again.settings, config.settings);
    }

    #[test]
    fn what_is_no_size_gets_an_example() {
        for text in [
            "",
            "GiB",
            "-1",
            "+1",
            "1e6",
            "1.5",
            "0.1KiB",
            "1.2.3M",
            ".5G",
            "5.G",
            "64MiB/s",
            "64Mb it",
            "99999999999GiB",
            "all",
            " 5M",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("expected a size such as 64MiB"), "{text}: {error}");
        }
    }
}
