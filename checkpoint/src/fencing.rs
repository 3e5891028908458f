//! `ATTEMPT-NNNN`: an attempt of a run claims its number before it has anything to save.
//!
//! Checkpoints alone fence too late: an attempt that has not saved yet is not visible in them, and
//! two attempts that start together would take the same number. The file is created exclusively,
//! so a number has one owner; an attempt that finds a higher one than its own must stop.

use serde::{Deserialize, Serialize};

use crate::agreement::on_rank_0;
use crate::durable::{Published, random};
use crate::error::Result;
use crate::peers::Peers;
use crate::store::Store;

const PREFIX: &str = "ATTEMPT-";

/// An attempt of a run that owns its number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Number of the attempt.
    pub attempt: u64,
    /// A random number, which makes the names of its checkpoints unique.
    pub nonce: u32,
}

impl Store {
    /// Claims a number for this attempt of the run, which fences all earlier ones, and returns it
    /// on all ranks: `at_least` (as rank 0 has it), or a larger number when the folder has that one
    /// or a later one already, as when the caller's own count was lost or another job started too.
    ///
    /// Collective. Call it once per attempt, before [`Store::resume`], so that no earlier attempt
    /// can save something newer than what is resumed; and save with what it returned as
    /// [`Save::claim`](crate::Save::claim).
    ///
    /// # Errors
    /// On rank 0 [`Error::Io`](crate::Error::Io) naming the file, elsewhere
    /// [`Error::OtherRanksFailed`](crate::Error::OtherRanksFailed).
    /// [`Error::Peers`](crate::Error::Peers) when a rank is lost.
    pub fn claim_attempt(&self, at_least: u64, peers: &dyn Peers) -> Result<Claim> {
        on_rank_0(peers, &self.root(), || self.claim(at_least))
    }

    fn claim(&self, at_least: u64) -> Result<Claim> {
        // Unlike a fixed text, this distinguishes a file of another job from our own one after a
        // retransmitted link(2).
        let text = format!("{:08x}{:08x}\n", random()?, random()?);
        loop {
            let attempt = at_least.max(self.unused_attempt()?);
            let published =
                self.tier().publish(&file_name(attempt), text.as_bytes(), &mut || {})?;
            // The number may have been unused only because a later attempt removed its file.
            if published == Published::Ours && self.newer_attempt(attempt)?.is_none() {
                self.remove_older_claims(attempt);
                return Ok(Claim { attempt, nonce: random()? });
            }
        }
    }

    /// A number that no attempt has used: one more than the largest in the folder.
    fn unused_attempt(&self) -> Result<u64> {
        Ok(self.newest_attempt()?.map_or(1, |newest| newest.attempt + 1))
    }

    /// Name of what the newest attempt has written, if that is a later one than `attempt`.
    pub(crate) fn newer_attempt(&self, attempt: u64) -> Result<Option<String>> {
        let newest = self.newest_attempt()?.filter(|newest| newest.attempt > attempt);
        Ok(newest.map(|newest| newest.file))
    }

    fn newest_attempt(&self) -> Result<Option<Trace>> {
        let saved = self.scan()?.into_iter().next();
        let saved = saved.map(|name| Trace { attempt: name.attempt, file: name.to_string() });
        let claimed = self.claims()?.into_iter().max();
        let claimed = claimed.map(|attempt| Trace { attempt, file: file_name(attempt) });
        Ok(saved.max(claimed))
    }

    /// Removes the files of earlier attempts; best effort, as the next attempt or save tries again.
    pub(crate) fn remove_older_claims(&self, attempt: u64) {
        for old in self.claims().unwrap_or_default().into_iter().filter(|old| *old < attempt) {
            drop(self.tier().delete(&file_name(old)));
        }
    }

    /// Numbers of all attempts that have a file.
    fn claims(&self) -> Result<Vec<u64>> {
        Ok(self.tier().list("")?.iter().filter_map(|entry| parse_claim(&entry.name)).collect())
    }
}

/// What an attempt has left in the folder: a checkpoint or its claim.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Trace {
    attempt: u64,
    file: String,
}

fn file_name(attempt: u64) -> String {
    format!("{PREFIX}{attempt:04}")
}

/// The attempt of a claim's file. Accepts exactly what [`file_name`] prints.
pub(crate) fn parse_claim(text: &str) -> Option<u64> {
    let attempt = text.strip_prefix(PREFIX)?.parse().ok()?;
    (file_name(attempt) == text).then_some(attempt)
}
