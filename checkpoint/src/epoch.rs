//! `EPOCH-NNNN`: an attempt of a run takes its number, before it has anything to save.
//!
//! Checkpoints alone fence too late: an attempt that has not saved yet leaves no mark, and two
//! attempts that start together would take the same number. The file is created exclusively, so
//! a number has one owner; whoever finds a higher one than its own must stop.

use std::fs;

use crate::agree::agree;
use crate::durable::{self, Published};
use crate::{Error, Peers, Result, Store};

const PREFIX: &str = "EPOCH-";

impl Store {
    /// Takes the epoch of this attempt, which fences all earlier ones, and returns it on all
    /// ranks: `attempt` (as rank 0 has it), or a larger number when the folder knows that one or
    /// a later one already, as when the caller's own count was lost or another job started too.
    ///
    /// Collective. Call it once per attempt, before [`Store::resume`], so that what is resumed
    /// cannot be overtaken by a save of an earlier attempt; and save with what it returned as
    /// [`Save::epoch`](crate::Save::epoch).
    ///
    /// # Errors
    /// [`Error::Io`] naming the file, [`Error::RestoreFailed`] when that happened on rank 0 and
    /// this is another. [`Error::Peers`] when a rank is lost.
    pub fn claim(&self, attempt: u64, peers: &dyn Peers) -> Result<u64> {
        let own = if peers.rank() == 0 { self.claim_alone(attempt) } else { Ok(0) };
        match agree(peers, own)? {
            Ok(epochs) => Ok(epochs[0]),
            Err(objection) => Err(objection.into_error(&self.root().display().to_string())),
        }
    }

    fn claim_alone(&self, attempt: u64) -> Result<u64> {
        // Unlike a fixed text, tells a file of another job from our own retransmitted link(2).
        let text = format!("{:08x}{:08x}\n", durable::random()?, durable::random()?);
        loop {
            let epoch = attempt.max(self.next_epoch()?);
            let path = self.root().join(file_name(epoch));
            let published = durable::publish(&path, &text[..8], text.as_bytes(), || {})?;
            let is_ours = matches!(published, Published::New | Published::Same);
            // The number may be free again only because a higher one made its owner's file old.
            if is_ours && self.newer_attempt(epoch)?.is_none() {
                self.sweep_epochs(epoch);
                return Ok(epoch);
            }
        }
    }

    /// An epoch that no attempt has used: one more than the largest that is there.
    fn next_epoch(&self) -> Result<u64> {
        Ok(self.newest_attempt()?.map_or(1, |(epoch, _)| epoch + 1))
    }

    /// What the newest attempt has written, if it is of a later epoch than this one.
    pub(crate) fn newer_attempt(&self, epoch: u64) -> Result<Option<String>> {
        let newest = self.newest_attempt()?.filter(|(found, _)| *found > epoch);
        Ok(newest.map(|(_, name)| name))
    }

    /// The largest epoch and the name of the checkpoint or file that has it.
    fn newest_attempt(&self) -> Result<Option<(u64, String)>> {
        let saved = self.scan()?.into_iter().next().map(|name| (name.epoch, name.to_string()));
        let claimed = self.epochs()?.into_iter().max().map(|epoch| (epoch, file_name(epoch)));
        Ok(saved.max(claimed))
    }

    /// Removes the files of earlier epochs; best effort, as the next attempt or save tries again.
    pub(crate) fn sweep_epochs(&self, epoch: u64) {
        for old in self.epochs().unwrap_or_default().into_iter().filter(|old| *old < epoch) {
            drop(fs::remove_file(self.root().join(file_name(old))));
        }
    }

    fn epochs(&self) -> Result<Vec<u64>> {
        let mut epochs = Vec::new();
        for entry in fs::read_dir(self.root()).map_err(Error::io(self.root(), "list"))? {
            let entry = entry.map_err(Error::io(self.root(), "list"))?;
            epochs.extend(entry.file_name().to_str().and_then(parse));
        }
        Ok(epochs)
    }
}

fn file_name(epoch: u64) -> String {
    format!("{PREFIX}{epoch:04}")
}

/// Accepts exactly what [`file_name`] prints.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let epoch = text.strip_prefix(PREFIX)?.parse().ok()?;
    (file_name(epoch) == text).then_some(epoch)
}
