//! Several tiers of one run: attempts are claimed on all of them, and a restore takes each file
//! from the nearest copy that is intact.
//!
//! The copies are found anew at each start: every rank lists what it sees, one gather sends all of
//! it to all ranks, and [`plan`] is a pure function, so all ranks decide alike. Restoring one
//! checkpoint takes a few more gathers. A copy that turns out to be damaged or unreadable is not
//! used again for this checkpoint, and the next copy is taken.

mod claim;
mod exchange;
pub mod plan;
mod preview;
mod restore;
mod resume;
mod rounds;
mod survey;
mod trial;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::fencing::Claim;
use crate::peers::Peers;
use crate::store::Store;
use crate::tensor::PartMut;
use crate::tier::Scope;

pub use preview::{Preview, PreviewSource, SkippedCheckpoint};
pub use restore::{Restored, SourceBytes};

/// A tier among those of a run.
#[derive(Debug, Clone)]
pub struct Member {
    /// Name of the tier in the configuration, as in `nvme`.
    pub name: String,
    /// Visibility of its files.
    pub scope: Scope,
    /// The run's checkpoints on it.
    pub store: Arc<Store>,
}

/// The tiers of a run.
#[derive(Debug)]
pub struct Tiers {
    members: Vec<Member>,
    unusable: Mutex<Vec<Unusable>>,
}

/// Tier that a rank cannot save on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unusable {
    /// Name of the tier.
    pub tier: String,
    /// The rank.
    pub rank: usize,
    /// Error of the rank, as text.
    pub reason: String,
    /// Checkpoints that this rank restores from there.
    pub reads: Reads,
}

/// Checkpoints that a rank restores from a tier that it cannot save on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reads {
    /// All checkpoints are read, as only writes are refused; none, if reads are refused as well.
    All,
    /// Nothing is read now. The tier may work again, so no older checkpoint is taken in place of
    /// one that may be there.
    Transient,
    /// Nothing is read, as if nothing were there.
    Nothing,
}

impl Reads {
    /// Checkpoints that are restored from a tier after an error of a write to it.
    pub fn after(error: &Error) -> Self {
        if error.is_refusal() { Self::All } else { Self::Transient }
    }
}

impl Tiers {
    /// The tiers of a run, the nearest first; the same on all ranks.
    ///
    /// # Panics
    /// When there is none, or a store has [another scope](Store::with_scope) than its member.
    pub fn new(members: Vec<Member>) -> Self {
        assert!(!members.is_empty(), "a run has at least one tier");
        for Member { name, scope, store } in &members {
            assert_eq!(store.scope(), *scope, "scope of the store of tier {name}");
        }
        Self { members, unusable: Mutex::default() }
    }

    /// The tiers, the nearest first.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Sets the tiers that ranks cannot save on. The same on all ranks.
    #[must_use]
    pub fn with_unusable(self, unusable: Vec<Unusable>) -> Self {
        Self { unusable: Mutex::new(unusable), ..self }
    }

    /// Tiers that are not to be saved on, and why: those of [`Tiers::with_unusable`] and those that
    /// [`Tiers::claim_attempt`] left out, the same on all ranks. Each is worth a warning. A restore
    /// takes from them what other ranks see there, and [what this one can read](Unusable::reads).
    pub fn unusable(&self) -> Vec<Unusable> {
        self.lock_unusable().clone()
    }

    /// Claims a number for this attempt of the run on all tiers, which fences all earlier ones, and
    /// returns it on all ranks: `at_least` (as rank 0 has it), or a larger number when a tier has
    /// that one or a later one already, as when the caller's own count was lost or another job
    /// started too. A tier that fails is left out, unless none remains: see [`Tiers::unusable`].
    ///
    /// Collective. Call it once per attempt, before [`Tiers::resume`], so that no earlier attempt
    /// can save something newer than the resumed checkpoint; and save with the returned claim as
    /// [`Save::claim`](crate::Save::claim).
    ///
    /// # Errors
    /// When no tier is usable: on a rank with a failure of its own that one, as [`Error::Io`]
    /// naming the file, elsewhere [`Error::OtherRanksFailed`]. [`Error::Peers`] when a rank is
    /// lost.
    pub fn claim_attempt(&self, at_least: u64, peers: &dyn Peers) -> Result<Claim> {
        let claimed = claim::claim(&self.views(None), self.unusable(), at_least, peers)?;
        *self.lock_unusable() = claimed.unusable;
        Ok(claimed.claim)
    }

    /// Restores the newest checkpoint that the tiers together have, into `parts`, verified on all
    /// ranks: each file from the nearest copy, on this rank's node, then on a shared tier, then on
    /// another rank's node, which reads, verifies and sends it. Past a bad copy it takes the next
    /// one, and where there is none an older checkpoint. `None` when nothing was ever committed.
    ///
    /// Damaged copies are [`Status::Rejected`](crate::Status::Rejected) afterwards on their tier,
    /// or only the files of some ranks are if those of others may be needed; so are checkpoints
    /// that could not be restored, on all tiers. Retention does not count them. Where none is
    /// usable all stay as they are. A commit that was cut between nodes is completed.
    ///
    /// Collective; the world, and which rank is on which node, may differ from those that saved. On
    /// an error the content of `parts` is unspecified. Call [`Tiers::claim_attempt`] before.
    ///
    /// # Errors
    /// As [`Store::resume`]. A failure that may pass is [`Error::Io`] when a tier
    /// has it without which the newest checkpoint cannot be restored: then an older one is not
    /// taken instead.
    ///
    /// # Panics
    /// When a part's data does not have the size of its box, or a box lies outside its tensor.
    pub fn resume(&self, parts: &mut [PartMut<'_>], peers: &dyn Peers) -> Result<Option<Restored>> {
        resume::resume(&self.views(Some(peers.rank())), parts, peers)
    }

    /// Returns the tiers that operations use, with those that `rank` could not use before.
    fn views(&self, rank: Option<usize>) -> Vec<View<'_>> {
        let unusable = self.lock_unusable();
        let own = |name: &str| {
            let is_own = |found: &&Unusable| Some(found.rank) == rank && found.tier == name;
            unusable.iter().find(is_own).cloned()
        };
        let mut views = Vec::new();
        for Member { name, store, .. } in &self.members {
            views.push(View { name: name.clone(), store, unusable: own(name) });
        }
        views
    }

    fn lock_unusable(&self) -> MutexGuard<'_, Vec<Unusable>> {
        self.unusable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A tier, as the operations of this folder see it.
struct View<'a> {
    name: String,
    store: &'a Store,
    /// Reason why this rank cannot save on it.
    unusable: Option<Unusable>,
}

impl View<'_> {
    /// Returns whether a rank lists and changes this tier: on a shared one rank 0 does it for all.
    fn is_visible_to(&self, rank: usize) -> bool {
        self.store.is_committed_by(rank)
    }
}

/// A store is the only tier of its run.
impl Store {
    /// [`Tiers::claim_attempt`] of a run with one tier.
    ///
    /// # Errors
    /// As that.
    pub fn claim_attempt(&self, at_least: u64, peers: &dyn Peers) -> Result<Claim> {
        Ok(claim::claim(&[self.view()], Vec::new(), at_least, peers)?.claim)
    }

    /// Restores the newest committed checkpoint into `parts`, verified on all ranks; falls back to
    /// older ones past any that is damaged. `None` when nothing was ever committed.
    ///
    /// Damaged ones are [`Status::Rejected`](crate::Status::Rejected) afterwards, so that retention
    /// does not count them; where none is usable all stay as they are.
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
    ///
    pub fn resume(&self, parts: &mut [PartMut<'_>], peers: &dyn Peers) -> Result<Option<Restored>> {
        resume::resume(&[self.view()], parts, peers)
    }

    /// Restores one checkpoint by name into `parts`, verified on all ranks.
    ///
    /// Collective; the world may differ from the one that saved. On an error the content of
    /// `parts` is unspecified.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::Io`] naming the
    /// file, and as [`Store::resume`].
    ///
    /// # Panics
    /// As [`Store::resume`].
    pub fn restore(
        &self,
        checkpoint: &str,
        parts: &mut [PartMut<'_>],
        peers: &dyn Peers,
    ) -> Result<Restored> {
        resume::restore(&self.view(), &self.parse_name(checkpoint)?, parts, peers)
    }

    fn view(&self) -> View<'_> {
        View { name: self.root().display().to_string(), store: self, unusable: None }
    }
}
