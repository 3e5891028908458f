//! Communicator of a rank: access to the other ranks, and the timeout of operations.

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use checkpoint::{Peers, PeersError};
use collectives::{Channel, Collective, Operation};
use device::ViewMut;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::{Failure, Outcome};
use record::{ExitCode, WeightsDigest};

/// Tag of messages between two ranks while they save and restore.
const TAG: u16 = 15;

/// Access of a rank to all ranks of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranks<'world> {
    pub(crate) collective: &'world dyn Collective,
    /// Timeout of one operation.
    pub(crate) timeout: Duration,
}

impl<'world> Ranks<'world> {
    pub(crate) fn new(collective: &'world dyn Collective, timeout: Duration) -> Self {
        Self { collective, timeout }
    }

    /// Returns the same ranks with another timeout.
    pub(crate) fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    pub(crate) fn rank(&self) -> usize {
        self.collective.rank()
    }

    pub(crate) fn world(&self) -> usize {
        self.collective.world()
    }

    /// Returns whether this is the only rank.
    pub(crate) fn is_alone(&self) -> bool {
        self.world() == 1
    }

    /// Returns the deadline of an operation that starts now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Gathers payloads of different lengths from all ranks: lengths first, then padded bytes.
    pub(crate) fn gather_bytes(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>, collectives::Error> {
        let deadline = self.deadline();
        // Never freed after an error, as the network may still write to them.
        let mut lengths = ManuallyDrop::new(vec![0.0_f64; self.world()]);
        lengths[self.rank()] = payload.len() as f64;
        self.collective.all_gather(&mut lengths, deadline)?;
        let lengths = ManuallyDrop::into_inner(lengths);
        let longest = lengths.iter().fold(0.0_f64, |a, &b| a.max(b)) as usize;
        let mut bytes = ManuallyDrop::new(vec![0_u8; longest * self.world()]);
        bytes[self.rank() * longest..][..payload.len()].copy_from_slice(payload);
        self.collective.all_gather(&mut bytes, deadline)?;
        let bytes = ManuallyDrop::into_inner(bytes);
        let payload_of =
            |(rank, &len): (usize, &f64)| bytes[rank * longest..][..len as usize].to_vec();
        Ok(lengths.iter().enumerate().map(payload_of).collect())
    }

    /// Adds up the parts of a digest that the ranks have computed.
    pub(crate) fn add_up(self, own: WeightsDigest) -> Result<WeightsDigest, collectives::Error> {
        // Never freed after an error, as the network may still write to them.
        let mut parts = ManuallyDrop::new(vec![[0; WeightsDigest::BYTES]; self.world()]);
        parts[self.rank()] = own.to_bytes();
        self.collective.all_gather(parts.as_flattened_mut(), self.deadline())?;
        let parts = ManuallyDrop::into_inner(parts);
        Ok(parts.into_iter().map(WeightsDigest::from_bytes).sum())
    }

    /// Gathers a value from every rank, in the order of ranks.
    pub(crate) fn gather<T: Serialize + DeserializeOwned>(&self, own: &T) -> Outcome<Vec<T>> {
        let internal = |error| Failure::new(ExitCode::Internal, error);
        let own = serde_json::to_vec(own).map_err(internal)?;
        let all = self.gather_bytes(&own)?;
        all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(internal)).collect()
    }
}

impl Peers for Ranks<'_> {
    fn rank(&self) -> usize {
        self.collective.rank()
    }

    fn world(&self) -> usize {
        self.collective.world()
    }

    fn all_gather(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>, PeersError> {
        self.gather_bytes(payload).map_err(PeersError::new)
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), PeersError> {
        let operation = Operation::Broadcast { root };
        let sent = self.collective.run(Channel::Control, operation, bytes, self.deadline());
        sent.map(drop).map_err(PeersError::new)
    }

    fn deadline(&self) -> Instant {
        Self::deadline(self)
    }

    fn send_receive(
        &self,
        to: usize,
        sent: &mut [u8],
        from: usize,
        received: &mut [u8],
        deadline: Instant,
    ) -> Result<(), PeersError> {
        let deadline = deadline.min(self.deadline());
        let send = (Operation::Send { to, tag: TAG }, ViewMut::from(&mut *sent));
        let receive = (Operation::Receive { from, tag: TAG }, ViewMut::from(&mut *received));
        let start = |messages| self.collective.run_group(Channel::Control, messages, deadline);
        // Its peer starts no message either where a buffer is empty.
        let exchanged = match (send.1.is_empty(), receive.1.is_empty()) {
            (false, false) => {
                self.collective.run_group(Channel::Control, [send, receive], deadline)
            }
            (false, true) => start([send]),
            (true, false) => start([receive]),
            (true, true) => return Ok(()),
        };
        exchanged.map(drop).map_err(PeersError::new)
    }
}

#[cfg(test)]
mod tests {
    use collectives::Threads;

    use super::*;

    /// Ranks of a circle have other numbers of messages for each other: 1, 1 and 2.
    #[test]
    fn nothing_is_sent_where_a_buffer_is_empty() {
        let ranks = Threads::group(3);
        std::thread::scope(|scope| {
            for collective in &ranks {
                scope.spawn(move || {
                    let ranks = Ranks::new(collective, Duration::from_secs(60));
                    let (rank, messages) = (collective.rank(), |rank| 1 + rank / 2);
                    let (to, from) = ((rank + 1) % 3, (rank + 2) % 3);
                    for number in 0..messages(rank).max(messages(from)) {
                        let len = |rank| if number < messages(rank) { 8 } else { 0 };
                        let mut sent = vec![(10 * rank + number) as u8; len(rank)];
                        let mut received = vec![0; len(from)];
                        let deadline = ranks.deadline();
                        ranks.send_receive(to, &mut sent, from, &mut received, deadline).unwrap();
                        assert_eq!(received, vec![(10 * from + number) as u8; len(from)]);
                    }
                });
            }
        });
    }

    /// A rank that does not answer is waited for until the deadline of the round, not for the
    /// timeout of a message.
    #[test]
    fn a_message_ends_at_the_deadline_of_its_round() {
        let ranks = Threads::group(2);
        let ranks = Ranks::new(&ranks[0], Duration::from_secs(120));
        let started = Instant::now();
        let deadline = started + Duration::from_millis(50);
        // The network may still access it.
        let [sent, received] = [(); 2].map(|()| vec![0; 8].leak());
        let error = ranks.send_receive(1, sent, 1, received, deadline).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(60), "{error}");
    }

    #[test]
    fn a_broadcast_reaches_all() {
        let ranks = Threads::group(3);
        std::thread::scope(|scope| {
            for collective in &ranks {
                scope.spawn(move || {
                    let ranks = Ranks::new(collective, Duration::from_secs(60));
                    for root in 0..3 {
                        let mut bytes = [10 * ranks.rank() as u8; 5];
                        Peers::broadcast(&ranks, root, &mut bytes).unwrap();
                        assert_eq!(bytes, [10 * root as u8; 5]);
                    }
                });
            }
        });
    }
}
