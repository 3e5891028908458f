//! Names of checkpoint folders: `s000012500-e0003-9f2c61ab`.

use std::fmt;
use std::str::FromStr;

/// Step, epoch and random attempt. Ordered by age: a later epoch continues the lineage, so it is
/// newer than any step of an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    pub(crate) attempt: u32,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{:09}-e{:04}-{:08x}", self.step, self.epoch, self.attempt)
    }
}

impl FromStr for Name {
    type Err = ();

    /// Accepts exactly what [`Name`] prints: everything else in a folder is foreign.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut pieces = text.split('-');
        let mut next = |prefix: &str| pieces.next().and_then(|piece| piece.strip_prefix(prefix));
        let step = next("s").and_then(|digits| digits.parse().ok()).ok_or(())?;
        let epoch = next("e").and_then(|digits| digits.parse().ok()).ok_or(())?;
        let attempt = next("").and_then(|digits| u32::from_str_radix(digits, 16).ok()).ok_or(())?;
        let name = Self { epoch, step, attempt };
        if name.to_string() == text { Ok(name) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_names_are_names() {
        let name = Name { epoch: 3, step: 12_500, attempt: 0x9f2c_61ab };
        assert_eq!(name.to_string(), "s000012500-e0003-9f2c61ab");
        assert_eq!("s000012500-e0003-9f2c61ab".parse(), Ok(name));
        for foreign in [
            "s12500-e3-9f2c61ab",
            ".s000012500-e0003-9f2c61ab",
            "s000012500-e0003-9f2c61ab~",
            "s000012500-e0003-9F2C61AB",
            "s000012500-e0003-9f2c61ab-",
            "s+00012500-e0003-9f2c61ab",
            "12500",
            "",
        ] {
            assert_eq!(foreign.parse::<Name>(), Err(()), "{foreign}");
        }
    }

    #[test]
    fn a_later_epoch_is_newer() {
        let name = |epoch, step| Name { epoch, step, attempt: 0 };
        assert!(name(2, 50) > name(1, 100) && name(1, 100) > name(1, 99));
    }
}
