//! Ranks other than 0: each copies its files of the checkpoint that rank 0 has announced.

use std::time::{Duration, Instant};

use super::announcement::{Announcement, Stage, refuse};
use super::state::Pauses;
use super::worker::{CopyError, Outcome, Worker};
use crate::error::{RankFailure, Result};
use crate::format::name::CheckpointName;

/// Pauses between checks of a waiting rank whether rank 0 has chosen its checkpoint.
const POLL_MIN: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_secs(5);

impl Worker {
    pub(super) fn follow(&self) {
        let mut copied = None;
        while let Some(name) = self.await_choice(copied.as_ref()) {
            self.begin(&name);
            self.follow_one(&name);
            self.remove_if_given_up(&name);
            // Not released before the next one: rank 0 or a rank of this node may still need it.
            self.shared.end();
            copied = Some(name);
        }
    }

    /// Waits for the choice of rank 0, which is polled only while a checkpoint waits. `None` when
    /// the promoter is being dropped.
    fn await_choice(&self, copied: Option<&CheckpointName>) -> Option<CheckpointName> {
        let mut watched: Option<Watch> = None;
        let mut retries = self.retry_pauses();
        loop {
            let submitted = self.shared.await_submission()?;
            let watch = match &mut watched {
                Some(watch) if watch.submitted == submitted => watch,
                _ => watched.insert(Watch::new(submitted)),
            };
            let pause = match self.look(&watch.submitted, copied) {
                Ok(Some(chosen)) => return Some(chosen),
                Ok(None) if watch.since.elapsed() < self.options.stall_timeout => {
                    watch.pauses.next()
                }
                Ok(None) => {
                    self.shared.stop_waiting(&watch.submitted);
                    continue;
                }
                Err(error) => {
                    self.shared.failed(&error);
                    watch.since = Instant::now(); // rank 0 may be unable to choose, too
                    retries.next()
                }
            };
            if !self.shared.pause(pause) {
                return None;
            }
        }
    }

    fn look(
        &self,
        submitted: &CheckpointName,
        copied: Option<&CheckpointName>,
    ) -> Result<Option<CheckpointName>> {
        let last = Announcement::read(self.to())?;
        let last = last.filter(|last| last.attempt == self.share.attempt);
        let Some(last) = last else { return Ok(None) };
        let Some(chosen) = last.name() else { return Ok(None) };
        if last.stage == Stage::Committed {
            self.note_durable(chosen.step);
        }
        let is_copied = copied == Some(&chosen) && chosen != *submitted;
        if last.stage == Stage::Copying && !is_copied {
            return Ok(Some(chosen));
        }
        if last.stage != Stage::Copying && chosen == *submitted {
            self.shared.stop_waiting(submitted);
        }
        Ok(None)
    }

    /// Copies this rank's files, again after failures, while rank 0 promotes the checkpoint.
    fn follow_one(&self, name: &CheckpointName) {
        let mut pauses = self.retry_pauses();
        loop {
            match self.try_to_follow(name) {
                Ok(()) => return self.note_success(),
                Err(CopyError::Retry(error)) => self.shared.failed(&error),
                Err(CopyError::Final(error)) => {
                    self.shared.failed(&error);
                    let refusal = RankFailure { rank: self.share.rank, reason: error.to_string() };
                    drop(refuse(self.to(), name, &refusal)); // otherwise rank 0 waits longer
                    return;
                }
                Err(CopyError::Stopped | CopyError::Superseded) => return,
            }
            if !self.shared.pause(pauses.next()) {
                return;
            }
        }
    }

    fn try_to_follow(&self, name: &CheckpointName) -> Outcome {
        let is_current = || self.check_current(name);
        is_current()?;
        if self.saved_ranks(name).is_empty() {
            return Ok(()); // its node may have nothing of it, not even the manifest
        }
        self.copy_share(&self.source(name)?, &is_current)
    }

    /// Frees the space of a checkpoint that rank 0 has given up: this rank may have written after
    /// rank 0 had removed it.
    fn remove_if_given_up(&self, name: &CheckpointName) {
        let given_up = self.announcement(name, Stage::GivenUp);
        if Announcement::read(self.to()).is_ok_and(|last| last == Some(given_up)) {
            self.discard(name);
        }
    }

    /// Checks that rank 0 still promotes this checkpoint.
    fn check_current(&self, name: &CheckpointName) -> Outcome {
        let last = Announcement::read(self.to()).map_err(CopyError::of_target)?;
        let is_current = last == Some(self.announcement(name, Stage::Copying));
        if is_current { Ok(()) } else { Err(CopyError::Superseded) }
    }
}

/// Checkpoint that rank 0 has not chosen yet.
struct Watch {
    submitted: CheckpointName,
    since: Instant,
    pauses: Pauses,
}

impl Watch {
    fn new(submitted: CheckpointName) -> Self {
        Self { submitted, since: Instant::now(), pauses: Pauses::new(POLL_MIN, POLL_MAX) }
    }
}
