//! Digest of all weights of a model.

use std::fmt;
use std::iter::Sum;

/// Digest of some or all weights of a model: a sum modulo 2^128 over elements, which has the same
/// value however the model is spread over ranks. Each rank adds up the elements that it owns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct WeightsDigest(u128);

impl WeightsDigest {
    /// Size of a digest in a message.
    pub const BYTES: usize = size_of::<u128>();

    /// Creates the digest with this sum.
    pub fn new(sum: u128) -> Self {
        Self(sum)
    }

    /// Returns the digest for a message.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0.to_le_bytes()
    }

    /// Returns the digest of a message.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(u128::from_le_bytes(bytes))
    }
}

impl Sum for WeightsDigest {
    fn sum<I: Iterator<Item = Self>>(digests: I) -> Self {
        Self(digests.fold(0, |sum, digest| sum.wrapping_add(digest.0)))
    }
}

impl fmt::Display for WeightsDigest {
    /// Writes the version of the digest and hexadecimal digits. Version 1, without a prefix, was
    /// BLAKE3 of all weights.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v2:{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_added_with_their_carry_and_shown_with_their_version() {
        let parts = [u128::MAX, 1 << 64, 2].map(WeightsDigest::new);
        let whole: WeightsDigest = parts.into_iter().sum();
        assert_eq!(whole, WeightsDigest::new((1 << 64) + 1));
        assert_eq!(whole.to_string(), "v2:00000000000000010000000000000001");
        assert_eq!(WeightsDigest::from_bytes(whole.to_bytes()), whole);
    }
}
