//! Locations of ranks, which they exchange at the rendezvous.

use super::cores::{CORES_MAX, allowed_cores};
use record::machine;

/// Location of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RankLocation {
    /// Name of the host.
    pub(crate) host: String,
    /// Id of the running kernel; may be empty.
    pub(crate) boot_id: String,
    /// Cores that the process may run on, in a fixed order.
    pub(crate) cores: Vec<usize>,
}

const HOST_BYTES: usize = 64; // Linux: HOST_NAME_MAX
const BOOT_ID_BYTES: usize = 64;
const MASK_BYTES: usize = CORES_MAX / 8;

impl RankLocation {
    /// Size of an encoded location in bytes.
    pub(crate) const BYTES: usize = HOST_BYTES + BOOT_ID_BYTES + MASK_BYTES;

    /// Returns the location of this process; call it before any thread is bound.
    pub(crate) fn of_this_process() -> Self {
        Self { host: machine::host_name(), boot_id: machine::boot_id(), cores: allowed_cores() }
    }

    /// Encodes it into `bytes`, of length [`RankLocation::BYTES`]. Text that is too long is cut.
    ///
    /// # Panics
    /// If `bytes` has another length.
    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), Self::BYTES, "length of an encoded location");
        bytes.fill(0);
        let (host, rest) = bytes.split_at_mut(HOST_BYTES);
        let (boot_id, mask) = rest.split_at_mut(BOOT_ID_BYTES);
        for (field, text) in [(host, &self.host), (boot_id, &self.boot_id)] {
            let len = text.len().min(field.len());
            field[..len].copy_from_slice(&text.as_bytes()[..len]);
        }
        for &core in self.cores.iter().filter(|&&core| core < CORES_MAX) {
            mask[core / 8] |= 1 << (core % 8);
        }
    }

    /// Decodes the output of [`RankLocation::encode`]; cores are in ascending order.
    ///
    /// # Panics
    /// If `bytes` does not have the length [`RankLocation::BYTES`].
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        assert_eq!(bytes.len(), Self::BYTES, "length of an encoded location");
        let text = |field: &[u8]| String::from_utf8_lossy(field).trim_end_matches('\0').to_owned();
        let (host, rest) = bytes.split_at(HOST_BYTES);
        let (boot_id, mask) = rest.split_at(BOOT_ID_BYTES);
        let is_set = |core: &usize| mask[core / 8] & (1 << (core % 8)) != 0;
        Self {
            host: text(host),
            boot_id: text(boot_id),
            cores: (0..CORES_MAX).filter(is_set).collect(),
        }
    }

    /// Key that ranks of one node share, and no others have.
    pub(crate) fn node(&self) -> (&str, &str) {
        (&self.host, &self.boot_id)
    }

    /// Returns whether both run on one kernel, perhaps in two pods; by host if that is hidden.
    pub(crate) fn is_on_same_machine(&self, other: &Self) -> bool {
        self.boot_id == other.boot_id && (!self.boot_id.is_empty() || self.host == other.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(host: &str, boot_id: &str, cores: &[usize]) -> RankLocation {
        RankLocation { host: host.to_owned(), boot_id: boot_id.to_owned(), cores: cores.to_vec() }
    }

    #[test]
    fn encoding_round_trips() {
        let original = location("worker-0.job", "b-1", &[0, 7, 8, CORES_MAX - 1]);
        let mut bytes = vec![0xFF; RankLocation::BYTES];
        original.encode(&mut bytes);
        assert_eq!(RankLocation::decode(&bytes), original);
    }

    #[test]
    fn a_long_name_is_cut_and_not_a_panic() {
        let mut bytes = vec![0; RankLocation::BYTES];
        location(&"n".repeat(300), "", &[]).encode(&mut bytes);
        assert_eq!(RankLocation::decode(&bytes).host.len(), HOST_BYTES);
    }
}
