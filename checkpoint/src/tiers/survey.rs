//! Survey of the checkpoints that each rank sees on all tiers, sent to all ranks in one gather.

use std::collections::BTreeMap;
use std::ops::Range;

use super::plan::{Flaw, Found, FoundCopy, Source, TierInventory};
use super::{Reads, Unusable, View};
use crate::agreement::agree;
use crate::error::{Error, Result};
use crate::format::digest::Digest;
use crate::format::limits::MANIFEST_BYTES_MAX;
use crate::format::manifest::MANIFEST;
use crate::format::name::CheckpointName;
use crate::peers::Peers;
use crate::store::{Status, Store};

/// View of all ranks, and the metadata that this rank has read for it.
pub(super) struct Survey {
    /// Inventories by rank.
    pub(super) inventories: Vec<Vec<TierInventory>>,
    pub(super) own: Own,
}

/// State that only this rank knows.
#[derive(Default)]
pub(super) struct Own {
    manifests: BTreeMap<(usize, String), String>,
    /// Errors that the other ranks have as text, in the order in which they were met.
    pub(super) errors: Vec<Error>,
}

impl Survey {
    /// Looks for all that is committed, or for one checkpoint only. Collective.
    pub(super) fn gather(
        views: &[View<'_>],
        only: Option<&CheckpointName>,
        peers: &dyn Peers,
    ) -> Result<Self> {
        let mut own = Own::default();
        let mut inventories = Vec::new();
        for (tier, view) in views.iter().enumerate() {
            if view.is_visible_to(peers.rank()) {
                inventories.push(own.list(tier, view, only));
            }
        }
        let gathered = agree(peers, Ok(inventories))?;
        let inventories = gathered.map_err(|abort| abort.into_error(&views[0].store.root()))?;
        Ok(Self { inventories, own })
    }

    /// Returns the reasons why ranks could not list tiers.
    pub(super) fn flaws<'a>(
        &'a self,
        views: &'a [View<'a>],
    ) -> impl Iterator<Item = (Source, &'a Flaw)> {
        self.found(views, |inventory| inventory.flaw.as_ref())
    }

    /// Returns the refusals to list tiers that ranks cannot save on either.
    pub(super) fn refused<'a>(
        &'a self,
        views: &'a [View<'a>],
    ) -> impl Iterator<Item = (Source, &'a String)> {
        self.found(views, |inventory| inventory.refused.as_ref())
    }

    fn found<'a, T>(
        &'a self,
        views: &'a [View<'a>],
        of: impl Fn(&'a TierInventory) -> Option<T> + Copy + 'a,
    ) -> impl Iterator<Item = (Source, T)> + 'a
    where
        T: 'a,
    {
        self.inventories.iter().enumerate().flat_map(move |(rank, inventories)| {
            inventories.iter().filter_map(move |inventory| {
                let scope = views[inventory.tier].store.scope();
                of(inventory).map(|found| (Source::seen(scope, inventory.tier, rank), found))
            })
        })
    }
}

impl Own {
    /// The manifest that this rank has read in a place.
    pub(super) fn manifest(&self, tier: usize, checkpoint: &str) -> String {
        self.manifests.get(&(tier, checkpoint.to_owned())).cloned().unwrap_or_default()
    }

    /// Keeps an error, and returns what the other ranks get of it.
    pub(super) fn flaw(&mut self, error: Error) -> Flaw {
        let flaw = Flaw { reason: error.to_string(), is_transient: !error.is_damage() };
        self.errors.push(error);
        flaw
    }

    fn list(
        &mut self,
        tier: usize,
        view: &View<'_>,
        only: Option<&CheckpointName>,
    ) -> TierInventory {
        let mut inventory = TierInventory {
            tier,
            disk: None,
            copies: Vec::new(),
            rejected: None,
            flaw: None,
            refused: None,
        };
        let reads = view.unusable.as_ref().map_or(Reads::All, |unusable| unusable.reads);
        if reads != Reads::All {
            let waits = view.unusable.clone().filter(|_| reads == Reads::Transient);
            inventory.flaw =
                waits.map(|Unusable { reason, .. }| Flaw { reason, is_transient: true });
            return inventory;
        }
        inventory.disk = view.store.disk();
        let names = match only {
            Some(name) => Ok(vec![name.clone()]),
            None => committed(view.store, &mut inventory.rejected),
        };
        match names {
            Ok(names) => {
                for name in names {
                    let checkpoint = name.to_string();
                    let found = self.find(tier, view.store, &name);
                    inventory.copies.push(FoundCopy { checkpoint, found });
                }
            }
            Err(error) if view.unusable.is_some() && error.is_refusal() => {
                inventory.refused = Some(error.to_string());
            }
            Err(error) => inventory.flaw = Some(self.flaw(error)),
        }
        inventory
    }

    fn find(&mut self, tier: usize, store: &Store, name: &CheckpointName) -> Found {
        let key = name.key(MANIFEST);
        let mut text = String::new();
        let manifest = store.read_checked(&key, |_| {
            text = store.read_text(&key, MANIFEST_BYTES_MAX)?;
            store.parse_manifest(name, text.as_bytes())
        });
        let digest = Digest::of(text.as_bytes()).to_string();
        self.manifests.insert((tier, name.to_string()), text); // of another run, too
        let found = manifest.and_then(|manifest| {
            let ranks = ranges(store.ranks_here(name, &manifest)?);
            Ok(Found::Files { digest, world: manifest.world, ranks })
        });
        found.unwrap_or_else(|error| match error {
            Error::Mismatch { .. } | Error::UnsupportedFormat { .. } => Found::Refused,
            error => Found::Flawed(self.flaw(error)),
        })
    }
}

/// Lists the checkpoints that are committed on a tier; where none is, notes one that was.
fn committed(store: &Store, rejected: &mut Option<String>) -> Result<Vec<CheckpointName>> {
    let names = store.scan()?;
    let is_rejected = |name: &&CheckpointName| store.status(name) == Status::Rejected;
    let (committed, others): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| store.is_committed(name));
    if committed.is_empty() {
        *rejected = others.iter().find(is_rejected).map(CheckpointName::to_string);
    }
    Ok(committed)
}

/// Ascending numbers as ranges.
fn ranges(numbers: Vec<usize>) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => ranges.push(number..number + 1),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_ranges() {
        assert_eq!(ranges(vec![]), []);
        assert_eq!(ranges(vec![0, 1, 2, 5, 7, 8]), [0..3, 5..6, 7..9]);
    }
}
