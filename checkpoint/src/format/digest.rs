//! Digests: CRC64/NVME for data (what S3 computes, and combinable), BLAKE3 for JSON files.

use std::fmt;

use crc_fast::{CrcAlgorithm, checksum};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// CRC64/NVME; written as 16 hexadecimal digits, as JSON numbers hold 53 bits only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Crc64(pub(crate) u64);

impl Crc64 {
    /// The digest of these bytes.
    pub(crate) fn of(data: &[u8]) -> Self {
        Self(checksum(CrcAlgorithm::Crc64Nvme, data))
    }
}

/// CRC64/NVME of bytes that arrive in pieces.
#[derive(Debug)]
pub(crate) struct Crc64Stream(crc_fast::Digest);

impl Crc64Stream {
    pub(crate) fn new() -> Self {
        Self(crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme))
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    /// The digest of all bytes since the last call.
    pub(crate) fn finish(&mut self) -> Crc64 {
        Crc64(self.0.finalize_reset())
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Digest(pub(crate) String);

impl Digest {
    /// The digest of these bytes.
    pub(crate) fn of(data: &[u8]) -> Self {
        Self(blake3::hash(data).to_hex().to_string())
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
}
