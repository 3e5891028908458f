//! `ATTEMPT-NNNN`: an attempt of a run claims its number before it has anything to save.
//!
//! Checkpoints alone fence too late: an attempt that has not saved yet is not visible in them, and
//! two attempts that start together would take the same number. The file is created exclusively,
//! so a number has one owner; an attempt that finds a higher one than its own must stop.

use std::io::ErrorKind;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::format::name::{ATTEMPT_MAX, number};
use crate::store::Store;
use record::files::{Published, random};

const PREFIX: &str = "ATTEMPT-";

/// Number that an attempt of a run owns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Number of the attempt.
    pub attempt: u64,
    /// A random number, which makes the names of its checkpoints unique.
    pub nonce: u32,
}

/// Claim and the text of its file, which distinguishes it from claims of other jobs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub(crate) claim: Claim,
    text: String,
}

impl Store {
    /// Claims `at_least`, or a larger number when this tier has that one or a later one already.
    pub(crate) fn claim(&self, at_least: u64) -> Result<Taken> {
        // Unlike a fixed text, this distinguishes a file of another job from our own one after a
        // retransmitted link(2).
        let text = format!("{:08x}{:08x}\n", random()?, random()?);
        let nonce = random()?;
        let mut at_least = at_least;
        loop {
            let attempt = at_least.max(self.unused_number()?);
            let taken = Taken { claim: Claim { attempt, nonce }, text: text.clone() };
            if self.leave_claim(&taken)? {
                return Ok(taken);
            }
            at_least = (attempt + 1).min(ATTEMPT_MAX); // a listing may be old
        }
    }

    /// Writes a claim, and returns whether no other attempt has this number or a later one. Several
    /// ranks of the attempt may do it.
    pub(crate) fn leave_claim(&self, taken: &Taken) -> Result<bool> {
        let attempt = taken.claim.attempt;
        let published =
            match self.tier().publish(&file_name(attempt), taken.text.as_bytes(), &mut || {}) {
                // Taken, and removed by a later attempt before it could be compared.
                Err(error) if error.source.kind() == ErrorKind::NotFound => return Ok(false),
                published => published?,
            };
        // The number may have been unused only because a later attempt removed its file.
        let is_ours = published == Published::Ours && self.newer_attempt(attempt)?.is_none();
        if is_ours {
            self.remove_older_claims(attempt);
        }
        Ok(is_ours)
    }

    /// Returns a number that no attempt has used: one more than the largest in the folder.
    ///
    /// # Errors
    /// [`Error::AttemptsExhausted`] when there is none.
    pub(crate) fn unused_number(&self) -> Result<u64> {
        match self.newest_attempt()? {
            None => Ok(1),
            Some(Trace { attempt, .. }) if attempt < ATTEMPT_MAX => Ok(attempt + 1),
            Some(Trace { file, .. }) => {
                Err(Error::AttemptsExhausted { path: self.tier().path(&file), max: ATTEMPT_MAX })
            }
        }
    }

    /// The largest number that any attempt has left here, 0 without one.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) when the tier cannot be listed.
    pub fn newest_number(&self) -> Result<u64> {
        Ok(self.newest_attempt()?.map_or(0, |newest| newest.attempt))
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

    /// Files that are named like those of attempts and are of none: their numbers are too large,
    /// or written in another way. They fence nobody.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) when the tier cannot be listed.
    pub fn foreign_claims(&self) -> Result<Vec<PathBuf>> {
        let is_foreign = |name: &str| {
            let digits = name.strip_prefix(PREFIX).unwrap_or_default();
            let is_number = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
            is_number && parse_claim(name).is_none()
        };
        let mut entries = self.tier().list("")?;
        entries.retain(|entry| is_foreign(&entry.name));
        Ok(entries.iter().map(|entry| self.tier().path(&entry.name)).collect())
    }

    /// Numbers of all attempts that have a file.
    fn claims(&self) -> Result<Vec<u64>> {
        Ok(self.tier().list("")?.iter().filter_map(|entry| parse_claim(&entry.name)).collect())
    }
}

/// Trace of an attempt in the folder: a checkpoint or its claim.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Trace {
    attempt: u64,
    file: String,
}

fn file_name(attempt: u64) -> String {
    format!("{PREFIX}{attempt:04}")
}

/// The attempt of a claim's file. Accepts exactly what [`file_name`] prints, up to [`ATTEMPT_MAX`].
pub(crate) fn parse_claim(text: &str) -> Option<u64> {
    let attempt = number(text.strip_prefix(PREFIX)?, ATTEMPT_MAX)?;
    (file_name(attempt) == text).then_some(attempt)
}
