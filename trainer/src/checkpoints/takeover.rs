//! Takeover by another tier after a failed save, and its reports.

use std::sync::Arc;

use checkpoint::{Member, Tiers};

use super::Checkpointer;
use super::save_tier::AfterFailure;
use super::tiers::Planned;
use crate::failure::{Failure, Outcome};
use crate::step::Trainer;
use record::ExitCode;
use record::text::Interval;

/// Reason why a checkpoint was not committed although no rank was lost.
#[derive(Debug)]
pub(crate) struct NotSaved {
    step: u64,
    /// Tier that was saved on.
    tier: String,
    /// Tier that has taken over, if there is one.
    next: Option<String>,
    /// Tier of the next save.
    present: String,
    /// First rank that failed.
    rank: Option<usize>,
    reason: String,
}

impl NotSaved {
    /// Marks the step as saved again at once, on whichever tier is next.
    pub(crate) fn retried(self) -> Self {
        Self { next: Some(self.present.clone()), ..self }
    }
}

impl Checkpointer {
    /// Returns the number of tiers that saves can be on.
    pub(crate) fn save_tiers(&self) -> usize {
        self.save_tier.count()
    }

    /// Returns whether another tier has yet to make up for a failed save.
    pub(crate) fn is_overdue(&self) -> bool {
        self.has_moved
    }

    /// Counts a failed save, and lets the next tier take over if there is one. All ranks do the
    /// same.
    pub(super) fn not_saved(
        &mut self,
        step: u64,
        error: &checkpoint::Error,
        trainer: &Trainer<'_>,
    ) -> Outcome<NotSaved> {
        self.saves.failed += 1;
        self.pending_tiers = self.pending_tiers.union(self.due);
        let tier = self.present().name.clone();
        let position = self.save_tier.position();
        let after = self.save_tier.failed();
        if self.save_tier.position() != position {
            self.save_on_present_tier(trainer)?;
        }
        self.has_moved = after == AfterFailure::TakenOver;
        let next = self.has_moved.then(|| self.present().name.clone());
        let present = self.present().name.clone();
        Ok(NotSaved { step, tier, next, present, rank: error.rank(), reason: error.to_string() })
    }

    /// Counts a commit, after which the nearest tier may be tried again.
    pub(super) fn move_after_commit(&mut self, step: u64, trainer: &Trainer<'_>) -> Outcome<()> {
        let position = self.save_tier.position();
        let is_recovered =
            self.save_tier.committed() && std::mem::take(&mut self.is_failure_reported);
        if is_recovered && self.rank == 0 {
            let tier = &self.present().name;
            self.warn(Some(step), format!("tier {tier} works again: step {step} is saved there"));
        }
        if self.save_tier.position() != position {
            self.save_on_present_tier(trainer)?;
        }
        Ok(())
    }

    /// Directs the next save to the tier that is in use now, and copies from there.
    fn save_on_present_tier(&mut self, trainer: &Trainer<'_>) -> Outcome<()> {
        // Copies from the tier before are aborted: the next save makes up for them.
        self.pending_tiers = self.pending_tiers.union(std::mem::take(&mut self.submitted));
        let store = Arc::clone(&self.present().store);
        self.saver().save_on(store);
        self.start_copies(trainer)
    }

    /// Warns that a save failed; `continues` says whether training does. A cause is reported the
    /// 1st, 2nd, 4th, 8th, ... time.
    pub(crate) fn warn_not_saved(&mut self, failed: NotSaved, continues: bool) {
        let NotSaved { step, tier, next, rank, reason, .. } = failed;
        let Some(count) = self.failures.count(&tier, &reason) else { return };
        self.is_failure_reported = true;
        if self.rank != 0 {
            return; // the same on all ranks
        }
        let then = match (next, continues) {
            (Some(next), _) => format!("tier {next} takes over from {tier}"),
            (None, true) => "training continues".to_owned(),
            (None, false) => "and training has ended".to_owned(),
        };
        let times = if count > 1 { format!(" ({count} times by now)") } else { String::new() };
        self.warn_of_rank(Some(step), rank, format!("not saved, {then}{times}: {reason}"));
    }

    /// Returns the error of a save that failed at the end of an attempt; `end` is why the attempt
    /// ends.
    pub(crate) fn not_saved_at_end(&self, failed: NotSaved, end: &str) -> Failure {
        let NotSaved { step, rank, reason, .. } = failed;
        let text = format!("{end}, but step {step} could not be saved: {reason}");
        let failure = Failure::new(ExitCode::Checkpoint, anyhow::anyhow!(text)).at_step(step);
        Failure { rank, ..failure }
    }
}

/// Returns the positions of the tiers that all ranks can use, the nearest first.
pub(super) fn usable(tiers: &Tiers) -> Vec<usize> {
    let unusable = tiers.unusable();
    let is_usable = |member: &Member| !unusable.iter().any(|found| found.tier == member.name);
    let members = tiers.members().iter().enumerate();
    members.filter(|(_, member)| is_usable(member)).map(|(position, _)| position).collect()
}

/// Returns the usable tiers that saves may be on: the nearest, and farther ones that the
/// configuration sends checkpoints to.
///
/// # Panics
/// If no tier is usable: no attempt can be claimed then.
pub(super) fn tiers_to_save_on(tiers: &Tiers, planned: &[Planned]) -> Vec<usize> {
    let usable = usable(tiers);
    let nearest = usable[0];
    let is_wanted = |&tier: &usize| tier == nearest || planned[tier].every != Interval::Never;
    usable.into_iter().filter(is_wanted).collect()
}
