//! Saving: every rank writes, all vote, rank 0 commits.
//!
//! A two-phase commit with rank 0 as its coordinator, and a name that all ranks derive alike. On a
//! tier of node scope every rank publishes the same manifest on its node. A save is collective.
//! Every rank takes part in the same gathers, also after a failure: (1) the vote, after all have
//! written; where ranks keep copies for [each other](Partner), one before each round of these and
//! one after the last; (2) the result: rank 0 sends whether the manifest is durable, or on a tier
//! of node scope each rank whether that of its node is. Before the result, a rank that has lost its
//! peers must remove nothing: rank 0 may have committed.
//!
//! [`Store::save`] does all of it at once. A [`Saver`] copies the state first and lets training
//! continue: its threads write, and ranks gather when all are ready.

mod bytes;
mod chunk_writer;
mod partner;
mod protocol;
mod rank_writer;
mod request;
mod saver;
mod snapshot;
mod staging;

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::failpoints::Failpoints;
use crate::peers::Peers;
use crate::store::Store;
use crate::tensor::Part;

use bytes::PartBytes;
pub use partner::Partner;
use protocol::{Participant, Written};
pub use request::{Save, SaveReport};
pub use saver::{Afterwards, Saver, SharedFailpoints, Veto};
pub use snapshot::{Frozen, Snapshot};
pub use staging::{STAGING, Staging};

impl Store {
    /// Saves a checkpoint, and waits for it. Where this returns `Ok`, on any rank, the checkpoint
    /// is committed. Each element should be in the boxes of one rank.
    ///
    /// # Errors
    /// [`Error::SaveFailed`] on all ranks alike when one of them failed: nothing is left of the
    /// checkpoint and training can continue. [`Error::Fenced`] when a newer attempt of the run
    /// writes here: stop. [`Error::Disagree`] when the ranks do not save the same step.
    /// [`Error::Peers`] when a rank is lost: the checkpoint may be committed or not, and a restart
    /// will find out.
    ///
    /// # Panics
    /// When a part's data does not have the size of its box, or a box lies outside its tensor.
    pub fn save(
        &self,
        request: &Save,
        parts: &[Part<'_>],
        peers: &dyn Peers,
        failpoints: &dyn Failpoints,
    ) -> Result<SaveReport> {
        parts.iter().for_each(|part| part.tensor.assert_valid(part.data.len()));
        let started = Instant::now();
        let order = rank_writer::order(parts.iter().map(|part| &part.tensor));
        let parts: Vec<_> = order.iter().map(|&index| &parts[index]).collect();
        let boxes: Vec<_> = parts.iter().map(|part| &part.tensor).collect();
        let rank = peers.rank();
        let participant = Participant { store: self, request, rank, failpoints };
        let written = participant.write(&boxes, &mut PartBytes::new(&parts));
        let committed = participant.vote(written, peers).and_then(|votes| {
            let publication = if participant.commits() {
                participant.publish(&votes)
            } else {
                Ok(Default::default())
            };
            Ok((votes, participant.settle(publication, peers)?))
        });
        let (votes, publication) = committed.map_err(|error| participant.clean_up(error))?;
        Ok(SaveReport {
            checkpoint: participant.checkpoint(),
            step: request.step,
            bytes: votes[rank].files.bytes,
            bytes_total: votes.iter().map(|vote| vote.files.bytes).sum(),
            writes: writes(&votes),
            commit: started.elapsed(),
            warnings: publication.warnings,
        })
    }
}

/// Time that each rank took to write.
fn writes(votes: &[Written]) -> Vec<Duration> {
    votes.iter().map(|vote| vote.took).collect()
}

impl Participant<'_> {
    /// Frees the space of a save that failed. That this fails is added to the error.
    fn clean_up(&self, mut error: Error) -> Error {
        if self.has_to_discard(&error)
            && let Err(second) = self.discard()
            && let Error::SaveFailed { failures, .. } = &mut error
            && let Some(first) = failures.first_mut()
        {
            first.reason = format!("{}; and cleaning up: {second}", first.reason);
        }
        error
    }
}
