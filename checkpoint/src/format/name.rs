//! Names of checkpoint folders: `s000012500-a0003-9f2c61ab`.

use std::fmt;
use std::str::FromStr;

/// Largest number of an attempt. Beyond it no number would be left for the attempts that follow.
pub(crate) const ATTEMPT_MAX: u64 = u32::MAX as u64;
/// Largest step: JSON numbers hold 53 bits.
pub(crate) const STEP_MAX: u64 = 1 << 53;

/// Step, attempt of the run, and a random number that makes the name unique. Ordered by age: a
/// later attempt continues the lineage, so it is newer than any step of an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CheckpointName {
    pub(crate) attempt: u64,
    pub(crate) step: u64,
    pub(crate) nonce: u32,
}

impl CheckpointName {
    /// The key of a file in the checkpoint's folder.
    pub(crate) fn key(&self, file: &str) -> String {
        format!("{self}/{file}")
    }
}

impl fmt::Display for CheckpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{:09}-a{:04}-{:08x}", self.step, self.attempt, self.nonce)
    }
}

impl FromStr for CheckpointName {
    type Err = ();

    /// Accepts exactly what [`Display`](fmt::Display) prints, up to [`ATTEMPT_MAX`] and
    /// [`STEP_MAX`]: all other names are foreign.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut fields = text.split('-');
        let mut next = |prefix: &str| fields.next().and_then(|field| field.strip_prefix(prefix));
        let step = next("s").and_then(|digits| number(digits, STEP_MAX)).ok_or(())?;
        let attempt = next("a").and_then(|digits| number(digits, ATTEMPT_MAX)).ok_or(())?;
        let nonce = next("").and_then(|digits| u32::from_str_radix(digits, 16).ok()).ok_or(())?;
        let name = Self { attempt, step, nonce };
        if name.to_string() == text { Ok(name) } else { Err(()) }
    }
}

/// A number up to a largest one.
pub(crate) fn number(digits: &str, max: u64) -> Option<u64> {
    digits.parse().ok().filter(|number| *number <= max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_printed_is_parsed() {
        let name = CheckpointName { attempt: 3, step: 12_500, nonce: 0x9f2c_61ab };
        assert_eq!(name.to_string(), "s000012500-a0003-9f2c61ab");
        assert_eq!("s000012500-a0003-9f2c61ab".parse(), Ok(name));
        for foreign in [
            "s12500-a3-9f2c61ab",
            ".s000012500-a0003-9f2c61ab",
            "s000012500-a0003-9f2c61ab~",
            "s000012500-a0003-9F2C61AB",
            "s000012500-a0003-9f2c61ab-",
            "s+00012500-a0003-9f2c61ab",
            "s000012500-e0003-9f2c61ab",
            "s18446744073709551615-a0003-9f2c61ab",
            "s9007199254740993-a0003-9f2c61ab",
            "s000012500-a4294967296-9f2c61ab",
            "s000012500-a18446744073709551615-9f2c61ab",
            "../s000012500-a0003-9f2c61ab",
            "/s000012500-a0003-9f2c61ab",
            "s000012500-a0003-9f2c61ab/..",
            "12500",
            "",
        ] {
            assert_eq!(foreign.parse::<CheckpointName>(), Err(()), "{foreign}");
        }
    }

    #[test]
    fn a_later_attempt_is_newer() {
        let name = |attempt, step| CheckpointName { attempt, step, nonce: 0 };
        assert!(name(2, 50) > name(1, 100) && name(1, 100) > name(1, 99));
    }
}
