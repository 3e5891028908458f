//! Claim of an attempt's number on all tiers of a run.
//!
//! The farthest tier that all ranks share decides between jobs that start at once: there the claim
//! is exclusive. The other tiers get the same claim, so that an earlier attempt is fenced wherever
//! it saves.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Reads, Unusable, View};
use crate::agreement::agree;
use crate::error::{Error, RankFailure, Result};
use crate::fencing::Claim;
use crate::peers::Peers;
use crate::store::Store;
use crate::tier::Scope;

pub(super) struct Claimed {
    pub(super) claim: Claim,
    pub(super) unusable: Vec<Unusable>,
}

/// Claims a number on all usable tiers. Collective.
pub(super) fn claim(
    views: &[View<'_>],
    unusable: Vec<Unusable>,
    at_least: u64,
    peers: &dyn Peers,
) -> Result<Claimed> {
    let mut claiming = Claiming { views, peers, unusable, own: None };
    loop {
        let unused = claiming.on_each_tier(|_, store| store.unused_number())?;
        let at_least = at_least.max(unused.into_iter().max().unwrap_or(1));
        let arbiter = claiming.arbiter();
        let decides = |tier| tier == arbiter && peers.rank() == 0;
        let taken = claiming.on_each_tier(|tier, store| {
            if decides(tier) { store.claim(at_least).map(Some) } else { Ok(None) }
        })?;
        let Some(taken) = taken.into_iter().flatten().next() else { continue };
        let is_ours = claiming.on_each_tier(|tier, store| {
            if decides(tier) { Ok(true) } else { store.leave_claim(&taken) }
        })?;
        if is_ours.into_iter().all(|is_ours| is_ours) {
            return Ok(Claimed { claim: taken.claim, unusable: claiming.unusable });
        }
    }
}

struct Claiming<'a> {
    views: &'a [View<'a>],
    peers: &'a dyn Peers,
    unusable: Vec<Unusable>,
    /// First error of this rank.
    own: Option<Error>,
}

impl Claiming<'_> {
    fn is_usable(&self, tier: usize) -> bool {
        self.unusable.iter().all(|unusable| unusable.tier != self.views[tier].name)
    }

    /// Returns the tier where the claim is exclusive: the farthest shared one, or rank 0's nearest
    /// one.
    fn arbiter(&self) -> usize {
        let usable = || (0..self.views.len()).filter(|&tier| self.is_usable(tier));
        let is_shared = |&tier: &usize| self.views[tier].store.scope() == Scope::Shared;
        let nearest = || usable().next();
        usable().rfind(is_shared).or_else(nearest).expect("otherwise it was an error")
    }

    /// Calls `act` on each usable tier that the rank sees, and returns the results of all ranks. A
    /// tier on which it fails on any rank is no longer usable. Collective.
    fn on_each_tier<T: Serialize + DeserializeOwned>(
        &mut self,
        act: impl Fn(usize, &Store) -> Result<T>,
    ) -> Result<Vec<T>> {
        let rank = self.peers.rank();
        let mut results = Vec::new();
        let mut failed = Vec::new();
        for (tier, view) in self.views.iter().enumerate() {
            if !view.is_visible_to(rank) || !self.is_usable(tier) {
                continue;
            }
            match act(tier, view.store) {
                Ok(result) => results.push(result),
                Err(error) => {
                    let (tier, reason) = (view.name.clone(), error.to_string());
                    failed.push(Unusable { tier, rank, reason, reads: Reads::after(&error) });
                    self.own.get_or_insert(error);
                }
            }
        }
        let root = self.views[0].store.root();
        let gathered = agree(self.peers, Ok((results, failed)))?;
        let mut all = Vec::new();
        for (results, failed) in gathered.map_err(|abort| abort.into_error(&root))? {
            all.extend(results);
            self.unusable.extend(failed);
        }
        if (0..self.views.len()).any(|tier| self.is_usable(tier)) {
            return Ok(all);
        }
        let failure = |unusable: &Unusable| RankFailure {
            rank: unusable.rank,
            reason: format!("{}: {}", unusable.tier, unusable.reason),
        };
        let failures = self.unusable.iter().map(failure).collect();
        Err(self.own.take().unwrap_or(Error::OtherRanksFailed { path: root, failures }))
    }
}
