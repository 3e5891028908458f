//! Communication of this crate with the other ranks.

use std::error::Error as StdError;
use std::time::{Duration, Instant};

/// The other ranks could not be reached, or not in time.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct PeersError(Box<dyn StdError + Send + Sync>);

impl PeersError {
    /// Wraps the transport's own error or text.
    pub fn new(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(source.into())
    }
}

/// Ranks of one run. Calls are collective: every rank makes the same calls in the same order.
pub trait Peers {
    /// Returns the number of this rank.
    fn rank(&self) -> usize;
    /// Number of ranks.
    fn world(&self) -> usize;
    /// Sends one payload to all ranks, and returns those of all ranks, by rank. Lengths may differ.
    ///
    /// # Errors
    /// When a rank is lost or the implementation's deadline passes.
    fn all_gather(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>, PeersError>;
    /// Sends the bytes of one rank to all, which have a buffer of the same length. After an error
    /// it may still be accessed until the process ends.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather), over which it is by default.
    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), PeersError> {
        let own = if root == self.rank() { &*bytes } else { &[] };
        let sent = self.all_gather(own)?.swap_remove(root);
        if sent.len() != bytes.len() {
            let (expected, found) = (bytes.len(), sent.len());
            let text = format!("rank {root}: expected {expected} bytes, found {found}");
            return Err(PeersError::new(text));
        }
        bytes.copy_from_slice(&sent);
        Ok(())
    }

    /// Returns the deadline of a round of messages that begins now; by default an hour later.
    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    /// Sends bytes to one rank, and at the same time receives as many as the buffer has from
    /// another one, which calls this with as many for this rank. Nothing is sent, or received, of
    /// an empty buffer. After an error both buffers may still be accessed until the process ends.
    /// `deadline` is that of all messages of a round; the implementation's may pass earlier.
    ///
    /// Saves with a [partner](crate::Partner) need it, and restores of files that are only on the
    /// disks of other nodes.
    ///
    /// # Errors
    /// When a rank is lost or a deadline passes, and by default always.
    fn send_receive(
        &self,
        to: usize,
        sent: &mut [u8],
        from: usize,
        received: &mut [u8],
        deadline: Instant,
    ) -> Result<(), PeersError> {
        let _ = (to, sent, from, received, deadline);
        Err(PeersError::new("these ranks have no messages between two of them"))
    }
}

/// A world of one rank.
#[derive(Debug, Clone, Copy, Default)]
pub struct SingleRank;

impl Peers for SingleRank {
    fn rank(&self) -> usize {
        0
    }

    fn world(&self) -> usize {
        1
    }

    fn all_gather(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>, PeersError> {
        Ok(vec![payload.to_vec()])
    }
}
