//! Tiers of a run that this machine can see.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use checkpoint::{Identity, Listed, Scope, Status, Store};
use clap::Args;

use super::super::note;
use super::unusable;
use record::Record;
use trainer::checkpoints::open::place;
use trainer::checkpoints::tiers::{Planned, planned};
use trainer::config::Config;
use trainer::config::Variables;
use trainer::failure::{Failure, Outcome};
use trainer::run::Folder;

/// Run, and the selected tier.
#[derive(Debug, Args)]
pub(super) struct Selection {
    /// Folder of the run.
    #[arg(value_name = "RUN")]
    folder: PathBuf,
    /// Use only this tier: nvme, shared or object.
    #[arg(long, value_name = "NAME")]
    tier: Option<String>,
}

/// Tier that has checkpoints of the run.
#[derive(Debug, Clone)]
pub(crate) struct SeenTier {
    pub(super) planned: Planned,
    pub(crate) store: Arc<Store>,
}

/// Tiers of a run.
#[derive(Debug)]
pub(crate) struct RunTiers {
    pub(super) folder: PathBuf,
    pub(super) identity: Identity,
    /// All configured tiers, the nearest first.
    pub(super) planned: Vec<Planned>,
    /// Tiers that have checkpoints of the run, the nearest first; never empty.
    pub(super) seen: Vec<SeenTier>,
}

impl Selection {
    pub(super) fn open(&self) -> Outcome<RunTiers> {
        let mut tiers = RunTiers::open(&self.folder)?;
        if let Some(name) = &self.tier {
            tiers.planned(name)?;
            tiers.seen.retain(|tier| tier.planned.name == name);
            tiers.require_any()?;
        }
        Ok(tiers)
    }
}

/// Identity and tiers of a run, read from its folder.
pub(super) struct Configured {
    identity: Identity,
    /// Tiers, the nearest first.
    pub(super) planned: Vec<Planned>,
}

impl Configured {
    pub(super) fn read(folder: &Path) -> Outcome<Self> {
        let run = Folder::new(folder);
        let config = folder.join("config.toml");
        let Some(identity) = run.stored_identity().filter(|_| config.is_file()) else {
            let shown = folder.display();
            let expected = "expected a run's folder, with identity.json and config.toml in it";
            return Err(Failure::usage(format!("{shown}: {expected}")));
        };
        let config = Config::of_run(folder)?;
        let checkpoint = &config.settings.checkpoint;
        let planned = planned(checkpoint, Variables::read(), &run.checkpoints(), &identity.run);
        Ok(Self { identity, planned })
    }
}

impl RunTiers {
    /// Opens all tiers of a run; names those that it cannot see on stderr.
    pub(crate) fn open(folder: &Path) -> Outcome<Self> {
        let Configured { identity, planned } = Configured::read(folder)?;
        let mut seen = Vec::new();
        for planned in &planned {
            let Planned { name, scope, address, .. } = planned;
            let tier = place(address, Duration::MAX);
            let found = tier.and_then(|tier| Store::find_run(tier, &identity));
            match found {
                Ok(store) => {
                    let store = Arc::new(store.with_scope(*scope));
                    seen.push(SeenTier { planned: planned.clone(), store });
                }
                Err(checkpoint::Error::NoCheckpoint { .. }) => {
                    note(format!("tier {name}: no checkpoint of this run seen in {address}"));
                }
                Err(error) => note(format!("tier {name}: {error}")),
            }
        }
        if Record::read(folder).is_ok_and(|record| record.is_dead(folder)) {
            let shown = folder.display();
            note(format!("{shown}: the run is dead: it recorded no end, and no process holds it"));
        }
        let tiers = Self { folder: folder.to_owned(), identity, planned, seen };
        tiers.require_any()?;
        Ok(tiers)
    }

    fn require_any(&self) -> Outcome<()> {
        if self.seen.is_empty() {
            return Err(self.nothing("no tier has a checkpoint that this machine sees"));
        }
        Ok(())
    }

    /// Returns the number of the newest attempt that any tier knows.
    pub(super) fn newest_attempt(&self) -> Outcome<u64> {
        let mut newest = 0;
        for tier in &self.seen {
            newest = tier.store.newest_number().map_err(unusable)?.max(newest);
        }
        Ok(newest)
    }

    /// Returns the error that something is missing in the run's folder.
    pub(super) fn nothing(&self, what: &str) -> Failure {
        unusable(anyhow::anyhow!("{}: {what}", self.folder.display()))
    }

    /// Returns a configured tier by its name.
    pub(super) fn planned(&self, name: &str) -> Outcome<&Planned> {
        let found = self.planned.iter().find(|tier| tier.name == name);
        found.ok_or_else(|| {
            let names: Vec<_> = self.planned.iter().map(|tier| tier.name).collect();
            let shown = self.folder.display();
            let names = names.join(", ");
            Failure::usage(format!("tier {name}: {shown} has only: {names}"))
        })
    }

    /// Returns the shared tier that has the newest checkpoint; of several, the nearest.
    pub(crate) fn most_recent_shared(&self) -> Outcome<&SeenTier> {
        let mut best: Option<(&SeenTier, Option<Age>)> = None;
        for tier in self.seen.iter().filter(|tier| tier.planned.scope == Scope::Shared) {
            let newest = tier.store.newest().map_err(unusable)?.map(|listed| age(&listed));
            if best.as_ref().is_none_or(|(_, found)| *found < newest) {
                best = Some((tier, newest));
            }
        }
        let found = best.map(|(tier, _)| tier);
        found.ok_or_else(|| self.nothing("no shared tier has a checkpoint that this machine sees"))
    }

    /// Returns the newest checkpoint that is committed on any tier.
    pub(crate) fn newest(&self) -> Outcome<String> {
        let mut newest: Option<Listed> = None;
        for tier in &self.seen {
            let found = tier.store.newest().map_err(unusable)?;
            let is_newer =
                |found: &Listed| newest.as_ref().is_none_or(|newest| age(newest) < age(found));
            if let Some(found) = found.filter(is_newer) {
                newest = Some(found);
            }
        }
        let newest = newest.map(|newest| newest.name);
        newest.ok_or_else(|| self.nothing("nothing is committed"))
    }

    /// Returns the tiers on which a checkpoint is committed.
    pub(super) fn holders(&self, checkpoint: &str) -> Outcome<Vec<&SeenTier>> {
        self.tiers_with(checkpoint, "committed", |store| store.holds(checkpoint))
    }

    /// Returns the tiers on which a checkpoint is committed or a restore has rejected it.
    pub(super) fn holders_of_any_state(&self, checkpoint: &str) -> Outcome<Vec<&SeenTier>> {
        self.tiers_with(checkpoint, "committed or rejected", |store| {
            Ok(store.holds(checkpoint)? || store.is_rejected(checkpoint)?)
        })
    }

    fn tiers_with(
        &self,
        checkpoint: &str,
        state: &str,
        is_held: impl Fn(&Store) -> Result<bool, checkpoint::Error>,
    ) -> Outcome<Vec<&SeenTier>> {
        let mut holders = Vec::new();
        for tier in &self.seen {
            if is_held(&tier.store).map_err(unusable)? {
                holders.push(tier);
            }
        }
        if holders.is_empty() {
            return Err(self.nothing(&format!("no tier has {checkpoint} {state}")));
        }
        Ok(holders)
    }
}

/// Key that orders checkpoints by age: the smallest is the oldest.
pub(super) type Age = (u64, u64, String);

/// Returns the age key of a checkpoint: a later attempt is newer than any step of an earlier one.
pub(super) fn age(listed: &Listed) -> Age {
    (listed.attempt, listed.step, listed.name.clone())
}

/// Formats a state for display.
pub(super) fn state(status: &Status) -> String {
    match status {
        Status::Committed { .. } => "committed".to_owned(),
        Status::Uncommitted => "uncommitted".to_owned(),
        Status::Rejected => "rejected".to_owned(),
        Status::Deleted => "deleted".to_owned(),
        Status::Damaged(reason) => format!("damaged: {reason}"),
        Status::Refused(reason) => format!("refused: {reason}"),
        _ => "unknown".to_owned(),
    }
}
