//! Saving: every rank writes, all vote, rank 0 commits.
//!
//! A two-phase commit with rank 0 as its coordinator. Collective, with the same number of gathers
//! on every rank whatever fails on one: (1) rank 0 sends the checkpoint's
//! name, (2) the vote, (3) rank 0 sends whether the manifest is durable. Between (2) and (3) a rank
//! that has lost its peers must remove nothing: rank 0 may have committed.

mod begin;
mod chunk_writer;
mod commit;
mod rank_writer;
mod request;

use std::time::Instant;

use crate::agreement::agree;
use crate::error::Result;
use crate::failpoints::Failpoints;
use crate::peers::Peers;
use crate::store::Store;

use commit::Commit;
use rank_writer::RankWriter;
pub use request::{Save, SaveReport};

impl Store {
    /// Saves a checkpoint. Where this returns `Ok`, on any rank, the checkpoint is committed.
    ///
    /// # Errors
    /// [`Error::SaveFailed`](crate::Error::SaveFailed) on all ranks alike when one of them failed:
    /// nothing is left of the checkpoint and training can continue.
    /// [`Error::Fenced`](crate::Error::Fenced) when a newer attempt of the run writes here: stop.
    /// [`Error::Disagree`](crate::Error::Disagree) when the ranks do not save the same step.
    /// [`Error::Peers`](crate::Error::Peers) when a rank is lost: the checkpoint may be committed
    /// or not, and a restart will find out.
    ///
    /// # Panics
    /// When a part's data does not have the size of its box, or a box lies outside its tensor.
    pub fn save(
        &self,
        request: &Save<'_>,
        peers: &dyn Peers,
        failpoints: &dyn Failpoints,
    ) -> Result<SaveReport> {
        request.parts.iter().for_each(|part| part.tensor.assert_valid(part.data.len()));
        let started = Instant::now();
        let name = self.begin(request, peers)?;
        let writer = RankWriter::new(self, &name, request.step, peers.rank(), failpoints);
        let written = writer.write(request.parts);
        let write = started.elapsed();
        let commit = Commit { store: self, name: &name, request, peers, failpoints };
        let votes = match agree(peers, written)? {
            Ok(votes) => votes,
            Err(abort) => return Err(commit.abort(abort)),
        };
        let vote = started.elapsed() - write;
        let warnings = commit.commit(&votes)?;
        Ok(SaveReport {
            checkpoint: name.to_string(),
            bytes: votes[peers.rank()].bytes,
            bytes_total: votes.iter().map(|vote| vote.bytes).sum(),
            write,
            vote,
            commit: started.elapsed() - vote - write,
            warnings,
        })
    }
}
