//! Agreement of ranks on the checkpoint to promote, without a collective: two kinds of files on the
//! target.
//!
//! `PROMOTION.json` in its root names the checkpoint that rank 0 has chosen; the other ranks copy
//! that one. If each rank chose its own newest one, slow and fast ranks would choose different ones
//! for ever and none would be complete. `rRRRRR.refused` in the checkpoint's folder says why a rank
//! cannot copy its files.

use std::io::ErrorKind;

use serde::{Deserialize, Serialize};

use crate::error::{RankFailure, Result};
use crate::format::limits::NOTE_BYTES_MAX;
use crate::format::name::{ATTEMPT_MAX, CheckpointName};
use crate::store::Store;

const ANNOUNCEMENT: &str = "PROMOTION.json";

/// Checkpoint that rank 0 promotes, or has promoted last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Announcement {
    /// Attempt of the run that promotes. Announcements of other attempts are out of date.
    pub(super) attempt: u64,
    pub(super) checkpoint: String,
    pub(super) stage: Stage,
}

/// Stage of a promotion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Stage {
    /// All ranks copy their files.
    Copying,
    Committed,
    GivenUp,
}

impl Announcement {
    /// The last one on this store; one that no attempt can have written counts as none.
    pub(super) fn read(to: &Store) -> Result<Option<Self>> {
        match to.tier().read(ANNOUNCEMENT, NOTE_BYTES_MAX) {
            Ok(text) => {
                let read = serde_json::from_slice(&text).ok();
                Ok(read.filter(Self::is_plausible))
            }
            Err(error) if error.source.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn write(&self, to: &Store) -> Result<()> {
        let text = serde_json::to_vec(self).expect("plain structs serialize");
        Ok(to.tier().replace(ANNOUNCEMENT, &text)?)
    }

    /// Returns whether an attempt can have written it: another one must not stop promotions for
    /// ever.
    fn is_plausible(&self) -> bool {
        self.attempt <= ATTEMPT_MAX && self.name().is_some()
    }

    pub(super) fn name(&self) -> Option<CheckpointName> {
        self.checkpoint.parse().ok()
    }
}

/// Says that a rank cannot copy its files.
pub(super) fn refuse(to: &Store, name: &CheckpointName, refusal: &RankFailure) -> Result<()> {
    let file = refusal_file(refusal.rank);
    Ok(to.tier().replace(&name.key(&file), refusal.reason.as_bytes())?)
}

/// Returns the ranks that have refused, and their reasons.
pub(super) fn refusals(to: &Store, name: &CheckpointName) -> Result<Vec<RankFailure>> {
    let read = |refusal: Refusal| {
        Ok(RankFailure {
            rank: refusal.rank,
            reason: to.read_text(&name.key(&refusal.file), NOTE_BYTES_MAX)?,
        })
    };
    list_refusals(to, name)?.into_iter().map(read).collect()
}

/// Removes the refusals of an earlier try.
pub(super) fn clear_refusals(to: &Store, name: &CheckpointName) -> Result<()> {
    let clear = |refusal: Refusal| Ok(to.tier().delete(&name.key(&refusal.file))?);
    list_refusals(to, name)?.into_iter().try_for_each(clear)
}

fn refusal_file(rank: usize) -> String {
    format!("r{rank:05}.refused")
}

struct Refusal {
    file: String,
    rank: usize,
}

fn list_refusals(to: &Store, name: &CheckpointName) -> Result<Vec<Refusal>> {
    let parse = |file: String| {
        let rank = file.strip_prefix('r')?.strip_suffix(".refused")?.parse().ok()?;
        (refusal_file(rank) == file).then_some(Refusal { file, rank })
    };
    let entries = to.tier().list(&name.to_string())?;
    Ok(entries.into_iter().filter_map(|entry| parse(entry.name)).collect())
}
