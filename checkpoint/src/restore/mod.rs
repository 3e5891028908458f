//! Restoring: all ranks restore the same checkpoint, the newest that is usable on all of them.

mod collective;
mod open_checkpoint;
mod plan;
mod retry;
mod shard_reader;
mod verify;

use crate::agreement::{Abort, on_rank_0};
use crate::error::{Error, RankFailure, Rejected, Result};
use crate::format::manifest::{MANIFEST, REJECTED};
use crate::format::name::CheckpointName;
use crate::peers::Peers;
use crate::store::{Status, Store};
use crate::tensor::PartMut;

pub use collective::Restored;
pub(crate) use retry::retry_while_absent;
pub(crate) use shard_reader::ShardReader;
pub use verify::VerifyReport;

impl Store {
    /// Restores the newest committed checkpoint into `parts`, verified on all ranks; falls back to
    /// older ones past any that is damaged. `None` when nothing was ever committed.
    ///
    /// Damaged ones are [`Status::Rejected`] afterwards, so that retention does not count them;
    /// where none is usable all stay as they are.
    ///
    /// Collective; the world may differ from the one that saved. On an error the content of
    /// `parts` is unspecified. Call [`Store::claim_attempt`] before.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] when there are committed ones and all are damaged or rejected.
    /// [`Error::Uncovered`], [`Error::Mismatch`] or [`Error::UnsupportedFormat`] when the newest
    /// one is not for this program: falling back would hide that. [`Error::OtherRanksFailed`] when
    /// that is so on another rank only. [`Error::Io`] when the file system fails for a reason that
    /// may pass (no permission, too many open files, a server that is down): start again.
    /// [`Error::Peers`] when a rank is lost.
    ///
    /// # Panics
    /// When a part's data does not have the size of its box, or a box lies outside its tensor.
    pub fn resume(&self, parts: &mut [PartMut<'_>], peers: &dyn Peers) -> Result<Option<Restored>> {
        let mut rejected = Vec::new();
        for checkpoint in on_rank_0(peers, &self.root(), || self.candidates())? {
            match self.restore_on_all_ranks(&checkpoint, parts, peers)? {
                Ok(restored) => {
                    self.reject(&rejected, peers)?;
                    return Ok(Some(Restored { rejected, ..restored }));
                }
                Err(Abort { failures, is_damage: true, .. }) => {
                    rejected.push(Rejected { checkpoint, failures });
                }
                Err(abort) => return Err(abort.into_error(&self.tier().path(&checkpoint))),
            }
        }
        if rejected.is_empty() {
            return Ok(None);
        }
        Err(Error::NoCheckpoint { root: self.root(), rejected })
    }

    /// Restores one checkpoint by name into `parts`, verified on all ranks.
    ///
    /// Collective; the world may differ from the one that saved. On an error the content of
    /// `parts` is unspecified.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::Io`] naming the file, and as [`Store::resume`].
    ///
    /// # Panics
    /// As [`Store::resume`].
    pub fn restore(
        &self,
        checkpoint: &str,
        parts: &mut [PartMut<'_>],
        peers: &dyn Peers,
    ) -> Result<Restored> {
        self.restore_on_all_ranks(checkpoint, parts, peers)?
            .map_err(|abort| abort.into_error(&self.tier().path(checkpoint)))
    }

    /// Names of all that was committed, newest first.
    fn candidates(&self) -> Result<Vec<String>> {
        let names = self.scan()?;
        let committed: Vec<_> = names.iter().filter(|name| self.is_committed(name)).collect();
        let is_rejected = |name: &&CheckpointName| self.status(name) == Status::Rejected;
        if committed.is_empty()
            && let Some(name) = names.iter().find(is_rejected)
        {
            // Starting from nothing would hide that there was a state once.
            let reason = format!("renamed to {REJECTED} by an earlier restore");
            let failures = vec![RankFailure { rank: 0, reason }];
            let rejected = vec![Rejected { checkpoint: name.to_string(), failures }];
            return Err(Error::NoCheckpoint { root: self.root(), rejected });
        }
        Ok(committed.into_iter().map(CheckpointName::to_string).collect())
    }

    /// Marks what was damaged, once an older one has been restored. All ranks fail together, as a
    /// damaged checkpoint that still counts would make retention remove a good one.
    fn reject(&self, rejected: &[Rejected], peers: &dyn Peers) -> Result<()> {
        if rejected.is_empty() {
            return Ok(());
        }
        on_rank_0(peers, &self.root(), || {
            rejected.iter().try_for_each(|rejected| {
                let name = self.parse_name(&rejected.checkpoint)?;
                match self.rename_manifest(&name, MANIFEST, REJECTED) {
                    Err(error) if error.is_absence() => Ok(()),
                    renamed => renamed,
                }
            })
        })
    }
}
