//! Digests: CRC64/NVME for data (S3's own, combinable), BLAKE3 for identity.

use std::fmt;

use crc_fast::{CrcAlgorithm, checksum};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// CRC64/NVME; written as 16 hexadecimal digits, as JSON numbers hold 53 bits only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crc64(pub u64);

impl Crc64 {
    /// Of all these bytes.
    pub fn of(data: &[u8]) -> Self {
        Self(checksum(CrcAlgorithm::Crc64Nvme, data))
    }
}

impl fmt::Display for Crc64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for Crc64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Crc64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map(Self).map_err(de::Error::custom)
    }
}

/// BLAKE3, 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(pub String);

impl Digest {
    /// Of all these bytes.
    pub fn of(data: &[u8]) -> Self {
        Self(blake3::hash(data).to_hex().to_string())
    }

    /// Root of the binary Merkle tree over these leaves, in order; an odd node moves up unchanged.
    /// Leaves and nodes are hashed with different first bytes, as in RFC 6962 section 2.1.
    pub fn merkle<'a>(leaves: impl Iterator<Item = &'a Self>) -> Self {
        let mut level: Vec<Self> = leaves.map(|leaf| Self::tagged(0, &leaf.0, "")).collect();
        while level.len() > 1 {
            let pair = |nodes: &[Self]| match nodes {
                [left, right] => Self::tagged(1, &left.0, &right.0),
                _ => nodes[0].clone(),
            };
            level = level.chunks(2).map(pair).collect();
        }
        level.pop().unwrap_or_else(|| Self::of(&[]))
    }

    fn tagged(tag: u8, left: &str, right: &str) -> Self {
        Self::of(&[&[tag], left.as_bytes(), right.as_bytes()].concat())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc64_is_the_nvme_variant() {
        assert_eq!(Crc64::of(b"123456789").to_string(), "ae8b14860a799888"); // CRC catalogue
    }

    #[test]
    fn merkle_root_depends_on_every_leaf_and_their_order() {
        let leaves: Vec<Digest> = (0_u8..5).map(|i| Digest::of(&[i])).collect();
        let root = Digest::merkle(leaves.iter());
        for i in 0..5 {
            let mut other = leaves.clone();
            other[i] = Digest::of(b"other");
            assert_ne!(Digest::merkle(other.iter()), root, "leaf {i}");
        }
        assert_ne!(Digest::merkle(leaves.iter().rev()), root);
        assert_ne!(Digest::merkle(leaves[..4].iter()), root);
    }
}
