//! Rank 0 of a route: chooses, copies its own files, waits for those of other ranks, and commits.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Promoted;
use super::announcement::{Announcement, Stage, clear_refusals, refusals};
use super::state::Pauses;
use super::worker::{CopyError, Outcome, Source, Worker};
use crate::error::{Error, RankFailure, Result};
use crate::failpoints::Failpoint;
use crate::format::index::index_file;
use crate::format::manifest::{MANIFEST, Manifest, REJECTED, TOMBSTONE, rank_folder};
use crate::format::name::CheckpointName;
use crate::restore::retry_while_absent;
use crate::store::Status;
use record::files::{IoError, Published};

/// Pauses between checks of rank 0 for files of other ranks.
const POLL_MIN: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_secs(2);

impl Worker {
    pub(super) fn lead(&self) {
        if let Ok(Some(newest)) = self.to().newest() {
            self.note_durable(newest.step);
        }
        while let Some(name) = self.shared.await_submission() {
            self.begin(&name);
            self.lead_one(&name);
            self.shared.release();
            self.shared.end();
        }
    }

    /// Promotes a checkpoint, however often it takes, unless a newer one waits after a failure.
    fn lead_one(&self, name: &CheckpointName) {
        let started = Instant::now();
        let mut pauses = self.retry_pauses();
        loop {
            match self.try_to_lead(name) {
                Ok(bytes) => {
                    let promoted =
                        |bytes| Promoted { step: name.step, bytes, duration: started.elapsed() };
                    self.shared.update(|status| status.promoted.extend(bytes.map(promoted)));
                    self.note_durable(name.step);
                    return self.note_success();
                }
                Err(CopyError::Retry(error)) => {
                    self.shared.failed(&error);
                    if self.shared.has_waiting() {
                        self.shared.update(|status| status.dropped += 1);
                        return self.give_up(name);
                    }
                    if !self.shared.pause(pauses.next()) {
                        return;
                    }
                }
                Err(CopyError::Final(error)) => {
                    self.shared.failed(&error);
                    if !matches!(error, Error::Fenced { .. }) {
                        self.give_up(name);
                    }
                    return;
                }
                Err(CopyError::Stopped | CopyError::Superseded) => return,
            }
        }
    }

    /// Returns the bytes that were promoted; `None` if the target has had the checkpoint before.
    fn try_to_lead(&self, name: &CheckpointName) -> Outcome<Option<u64>> {
        if self.is_durable(name).map_err(CopyError::of_target)? {
            self.announce(name, Stage::Committed).map_err(CopyError::of_target)?;
            return Ok(None);
        }
        let source = self.source(name)?;
        self.choose(&source)?;
        self.copy_share(&source, &|| Ok(()))?;
        self.await_ranks(&source)?;
        self.check_target(name, &source.manifest).map_err(CopyError::of_read)?;
        self.failpoints.hit_in_promotion(Failpoint::PromotionBeforeManifest, name.step);
        self.pause(Duration::ZERO)?;
        self.commit(&source)?;
        Ok(Some(source.manifest.bytes))
    }

    /// Checks the indexes of all ranks, which vouch for their shards, and the sizes of those.
    fn check_target(&self, name: &CheckpointName, manifest: &Manifest) -> Result<()> {
        let check = || self.to().check_files(name, manifest, 0..manifest.world);
        retry_while_absent(self.to().visible_until(), check)
    }

    /// Returns whether a checkpoint is committed on the target, with all files. A copy that is
    /// damaged there, or half removed, is removed first.
    fn is_durable(&self, name: &CheckpointName) -> Result<bool> {
        let entries = self.to().tier().list(&name.to_string())?;
        let has = |file: &str| entries.iter().any(|entry| entry.name == file);
        // A rejection or its undoing that was cut short leaves both: the manifest counts.
        let is_rejected = has(REJECTED) && !has(MANIFEST);
        for (marker, is_marked) in [(TOMBSTONE, has(TOMBSTONE)), (REJECTED, is_rejected)] {
            if is_marked {
                self.to().tier().delete(&name.key(MANIFEST))?;
                self.to().tier().delete_folder(&name.to_string(), marker)?;
                return Ok(false);
            }
        }
        if !has(MANIFEST) || !self.to().rejected_ranks(name)?.is_empty() {
            return Ok(false);
        }
        match self.check_committed(name) {
            Err(error) if error.is_damage() => {
                self.shared.update(|status| status.last_error = Some(error.to_string()));
                Ok(false) // what is wrong of it is replaced, while the rest stays committed
            }
            checked => checked.map(|()| true),
        }
    }

    fn check_committed(&self, name: &CheckpointName) -> Result<()> {
        self.check_target(name, &self.to().manifest(name)?)
    }

    /// Makes the other ranks copy this checkpoint, unless a newer attempt promotes.
    fn choose(&self, source: &Source) -> Outcome {
        let name = &source.name;
        let attempt = self.share.attempt;
        let last = Announcement::read(self.to()).map_err(CopyError::of_target)?;
        let newer = last.as_ref().filter(|last| last.attempt > attempt);
        if let Some(Announcement { checkpoint, .. }) = newer {
            let path = self.to().tier().path(checkpoint);
            let found = checkpoint.clone();
            return Err(CopyError::Final(Error::Fenced { path, attempt, found }));
        }
        if last == Some(self.announcement(name, Stage::Copying)) {
            return Ok(()); // it resumes after a failure: refusals and indexes stay
        }
        clear_refusals(self.to(), name).map_err(CopyError::of_target)?;
        self.clear_indexes(source).map_err(CopyError::of_target)?;
        self.announce(name, Stage::Copying).map_err(CopyError::of_target)
    }

    /// Removes indexes that an earlier attempt left: they would vouch for shards that no rank of
    /// this one has verified. A process that promotes alone verifies all of them.
    fn clear_indexes(&self, source: &Source) -> Result<()> {
        if self.share.world == 1 {
            return Ok(());
        }
        let Source { name, manifest, .. } = source;
        let is_committed = self.to().is_committed(name);
        let rejected = self.to().rejected_ranks(name)?;
        let ranks: Vec<usize> = (0..manifest.world).collect();
        let found = self.files_of(source, &ranks)?;
        for rank in ranks {
            let key = manifest.rank_key(name, rank, &index_file(rank));
            // What was committed was verified then: only what is wrong of it is replaced.
            let is_good = || {
                !rejected.contains(&rank) && self.to().check_files(name, manifest, [rank]).is_ok()
            };
            if found.contains(&key) && !(is_committed && is_good()) {
                self.to().tier().delete(&key)?;
            }
        }
        Ok(())
    }

    /// Announces a stage. A process that promotes alone announces nothing, so that it does not
    /// disturb a run that promotes at the same time.
    fn announce(&self, name: &CheckpointName, stage: Stage) -> Result<()> {
        if self.share.world == 1 {
            return Ok(());
        }
        self.announcement(name, stage).write(self.to())
    }

    /// Waits until the indexes of all ranks are on the target, as long as files arrive.
    fn await_ranks(&self, source: &Source) -> Outcome {
        let Source { name, manifest, .. } = source;
        let mut missing: Vec<usize> = (0..manifest.world).collect();
        let mut files = 0;
        let mut progress = Instant::now();
        let mut pauses = Pauses::new(POLL_MIN, POLL_MAX);
        loop {
            let found = self.files_of(source, &missing).map_err(CopyError::of_target)?;
            let key = |rank: usize| manifest.rank_key(name, rank, &index_file(rank));
            missing.retain(|rank| !found.contains(&key(*rank)));
            if missing.is_empty() {
                return Ok(());
            }
            let refusals = refusals(self.to(), name).map_err(CopyError::of_target)?;
            if !refusals.is_empty() {
                return Err(self.others_failed(name, refusals));
            }
            if found.len() != files {
                files = found.len();
                progress = Instant::now();
                pauses = Pauses::new(POLL_MIN, POLL_MAX);
            }
            if progress.elapsed() >= self.options.stall_timeout {
                let reason = format!("has sent no file for {:?}", self.options.stall_timeout);
                let late = |rank| RankFailure { rank, reason: reason.clone() };
                return Err(self.others_failed(name, missing.into_iter().map(late).collect()));
            }
            self.pause(pauses.next())?;
        }
    }

    /// Keys of what is on the target in the folders of these ranks.
    fn files_of(&self, source: &Source, ranks: &[usize]) -> Result<BTreeSet<String>> {
        let Source { name, manifest, .. } = source;
        let folder = |rank: &usize| rank_folder(name, *rank, manifest.ranks_per_folder);
        let folders: BTreeSet<String> = ranks.iter().map(folder).collect();
        let mut keys = BTreeSet::new();
        for folder in folders {
            let entries = self.to().tier().list(&folder)?;
            keys.extend(entries.into_iter().map(|entry| format!("{folder}/{}", entry.name)));
        }
        Ok(keys)
    }

    fn others_failed(&self, name: &CheckpointName, failures: Vec<RankFailure>) -> CopyError {
        let path = self.to().tier().path(&name.to_string());
        CopyError::Final(Error::OtherRanksFailed { path, failures })
    }

    fn commit(&self, source: &Source) -> Outcome {
        let name = &source.name;
        if self.from().is_pinned(name) {
            self.to().mark_pinned(name).map_err(CopyError::of_target)?;
        }
        self.publish(source)?;
        self.to().reinstate_ranks(name).map_err(CopyError::of_target)?; // all are intact now
        // It counts now; what follows is tried again with the next one.
        let warnings = [self.note_latest(name).err(), self.announce(name, Stage::Committed).err()];
        let warnings = warnings.into_iter().flatten().map(|error| error.to_string());
        let warnings = warnings.chain(self.apply_retention_on_target()).next();
        if warnings.is_some() {
            self.shared.update(|status| status.last_error = warnings);
        }
        Ok(())
    }

    /// Publishes the manifest; in the place of one that is damaged, too.
    fn publish(&self, source: &Source) -> Outcome {
        let Source { name, text, .. } = source;
        let tier = self.to().tier();
        let key = name.key(MANIFEST);
        let published = tier.publish(&key, text.as_bytes(), &mut || {});
        if published.map_err(CopyError::of_target)? == Published::Ours {
            return Ok(());
        }
        if self.to().manifest(name).is_err_and(|error| error.is_damage()) {
            return tier.replace(&key, text.as_bytes()).map_err(CopyError::of_target);
        }
        let taken = std::io::Error::other("another manifest is there");
        Err(CopyError::Final(IoError::at(&tier.path(&key), "create")(taken).into()))
    }

    /// Writes which checkpoint is the newest, unless a newer one is there.
    fn note_latest(&self, name: &CheckpointName) -> Result<()> {
        let names = self.to().scan()?;
        let mut newer = names.iter().take_while(|other| *other > name);
        if newer.any(|other| self.to().is_committed(other)) {
            return Ok(());
        }
        self.to().write_latest(name)
    }

    /// Removes checkpoints older than those to keep, and incomplete ones older than a committed
    /// one. Returns warnings.
    fn apply_retention_on_target(&self) -> Vec<String> {
        let report = self.to().remove_old(self.route.keep, &*self.failpoints);
        let mut is_older = false;
        for name in self.to().scan().unwrap_or_default() {
            match self.to().status(&name) {
                Status::Committed { .. } => is_older = true,
                Status::Uncommitted if is_older => drop(self.to().discard(&name)),
                Status::Deleted => {
                    drop(self.to().finish_removal(&name));
                }
                _ => {}
            }
        }
        report.warnings
    }

    /// Lets the other ranks continue, and frees the space.
    fn give_up(&self, name: &CheckpointName) {
        drop(self.announce(name, Stage::GivenUp));
        self.discard(name);
    }
}
