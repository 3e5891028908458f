//! Restoring the newest checkpoint that the tiers together have, from the best copies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::View;
use super::plan::{Candidate, Flaw, Plan, Source, Version};
use super::restore::{Restored, SourceBytes};
use super::survey::Survey;
use super::trial::{Failure, Filled, Trial, send_manifest};
use crate::agreement::agree;
use crate::error::{Error, RankFailure, Rejected, Result};
use crate::format::manifest::REJECTED;
use crate::format::name::CheckpointName;
use crate::peers::Peers;
use crate::tensor::PartMut;
use crate::tier::Scope;

/// Times that ranks send again what has arrived damaged.
const RESENDS_MAX: usize = 2;
/// Advice about copies that were marked.
const VERIFY_HINT: &str = "; `yardstick ckpt verify --checkpoint` reinstates it if it is intact";

/// See [`Tiers::resume`](super::Tiers::resume).
pub(super) fn resume(
    views: &[View<'_>],
    parts: &mut [PartMut<'_>],
    peers: &dyn Peers,
) -> Result<Option<Restored>> {
    let mut search = Search::new(views, None, parts, peers)?;
    let candidates = search.candidates();
    if candidates.is_empty() {
        return search.nothing_found().map(|()| None);
    }
    let mut rejected = Vec::new();
    let mut unusable = Vec::new();
    for mut candidate in candidates {
        match search.try_candidate(&mut candidate)? {
            Outcome::Restored(filled, failures) => {
                let name = parse(&candidate);
                unusable.extend(search.bad_copies(&mut candidate, &failures));
                let own_warnings = search.complete(&name, &filled);
                let mut warnings = search.warnings(&candidate, &failures);
                warnings.extend(search.conclude(&unusable, own_warnings)?);
                let restored = search.restored(&name, *filled);
                return Ok(Some(Restored { rejected, warnings, ..restored }));
            }
            Outcome::Unusable(failures) => {
                search.fail_if_transient(&candidate, &failures)?;
                let checkpoint = candidate.checkpoint.clone();
                unusable.extend(all_copies(&candidate));
                rejected.push(Rejected { checkpoint, failures: rank_failures(&failures) });
            }
        }
    }
    Err(Error::NoCheckpoint { root: views[0].store.root(), rejected })
}

/// See [`Store::restore`](crate::Store::restore).
pub(super) fn restore(
    view: &View<'_>,
    name: &CheckpointName,
    parts: &mut [PartMut<'_>],
    peers: &dyn Peers,
) -> Result<Restored> {
    let views = std::slice::from_ref(view);
    let mut search = Search::new(views, Some(name), parts, peers)?;
    let mut failures = Vec::new();
    for mut candidate in search.candidates() {
        match search.try_candidate(&mut candidate)? {
            Outcome::Restored(filled, _) => {
                let warnings = search.conclude(&[], Vec::new())?;
                return Ok(Restored { warnings, ..search.restored(name, *filled) });
            }
            Outcome::Unusable(found) => failures.extend(found),
        }
    }
    let path = view.store.tier().path(&name.to_string());
    let others = Error::OtherRanksFailed { path, failures: rank_failures(&failures) };
    Err(search.survey.own.errors.into_iter().next().unwrap_or(others))
}

struct Search<'a, 'p> {
    views: &'a [View<'a>],
    parts: &'a mut [PartMut<'p>],
    peers: &'a dyn Peers,
    started: Instant,
    survey: Survey,
}

/// Outcome of the tries to restore one checkpoint.
enum Outcome {
    /// Restored, with the failures of copies that other copies replaced.
    Restored(Box<Filled>, Vec<Failure>),
    /// No copy is left.
    Unusable(Vec<Failure>),
}

/// Copy that must not count any more.
struct BadCopy {
    name: CheckpointName,
    source: Source,
    /// The saved ranks whose files are damaged; `None` if all of it is of no use.
    damaged: Option<BTreeSet<usize>>,
}

impl<'a, 'p> Search<'a, 'p> {
    fn new(
        views: &'a [View<'a>],
        only: Option<&CheckpointName>,
        parts: &'a mut [PartMut<'p>],
        peers: &'a dyn Peers,
    ) -> Result<Self> {
        parts.iter().for_each(|part| part.tensor.assert_valid(part.data.size_bytes()));
        let started = Instant::now();
        let survey = Survey::gather(views, only, peers)?;
        Ok(Self { views, parts, peers, started, survey })
    }

    /// Newest first.
    fn candidates(&self) -> Vec<Candidate> {
        let scopes: Vec<_> = self.views.iter().map(|view| view.store.scope()).collect();
        Plan::new(&scopes, &self.survey.inventories).candidates
    }

    /// Fails unless no checkpoint was ever committed.
    fn nothing_found(&mut self) -> Result<()> {
        let flaws = self.survey.flaws(self.views);
        let failures: Vec<_> = flaws.map(|(source, flaw)| on_tier(source, flaw)).collect();
        let root = self.views[0].store.root();
        if !failures.is_empty() {
            let others = Error::OtherRanksFailed { path: root, failures: rank_failures(&failures) };
            return Err(self.survey.own.errors.drain(..).next().unwrap_or(others));
        }
        let inventories = self.survey.inventories.iter().enumerate();
        let mut rejected = inventories.flat_map(|(rank, inventories)| {
            inventories
                .iter()
                .filter_map(move |inventory| Some((rank, inventory.rejected.as_ref()?)))
        });
        let Some((rank, checkpoint)) = rejected.next() else { return Ok(()) };
        // Starting from nothing would hide that there was a state once.
        let reason = format!("renamed to {REJECTED} by an earlier restore{VERIFY_HINT}");
        let failures = vec![RankFailure { rank, reason }];
        let rejected = vec![Rejected { checkpoint: checkpoint.clone(), failures }];
        Err(Error::NoCheckpoint { root, rejected })
    }

    /// Tries until the checkpoint is restored or no copy is left of some part of it.
    fn try_candidate(&mut self, candidate: &mut Candidate) -> Result<Outcome> {
        let name = parse(candidate);
        let mut failures: Vec<_> =
            candidate.flawed.iter().map(|(source, flaw)| on_tier(*source, flaw)).collect();
        let mut resends = RESENDS_MAX;
        for version in &mut candidate.versions {
            let never_seen = version.missing();
            if !never_seen.is_empty() {
                failures.push(incomplete(version, &never_seen));
            }
            while version.missing().is_empty() {
                let trial = Trial {
                    views: self.views,
                    name: &name,
                    version,
                    started: self.started,
                    peers: self.peers,
                };
                match trial.run(self.parts, &mut self.survey.own)? {
                    Ok(filled) => return Ok(Outcome::Restored(Box::new(filled), failures)),
                    Err(found) => {
                        exclude(version, &found, &mut resends);
                        failures.extend(found);
                    }
                }
            }
        }
        if let Some(source) = candidate.refused {
            self.refuse(&name, source)?;
        }
        Ok(Outcome::Unusable(failures))
    }

    /// The error of a manifest that is not for this run, on all ranks.
    fn refuse(&self, name: &CheckpointName, source: Source) -> Result<()> {
        let own = &self.survey.own;
        let text = send_manifest(self.views, name, source, own, self.peers)?;
        let store = self.views[source.tier].store;
        store.parse_manifest(name, text.as_bytes()).map(|_| ())
    }

    /// Fails if an older checkpoint would take the place of one that may be readable later.
    fn fail_if_transient(&mut self, candidate: &Candidate, found: &[Failure]) -> Result<()> {
        let flaws = self.survey.flaws(self.views);
        let unreachable = flaws.map(|(source, flaw)| on_tier(source, flaw));
        let all = found.iter().cloned().chain(unreachable);
        let failures: Vec<_> = all.filter(|failure| failure.flaw.is_transient).collect();
        if failures.is_empty() {
            return Ok(());
        }
        let own = &mut self.survey.own.errors;
        if let Some(transient) = own.iter().position(|error| !error.is_damage()) {
            return Err(own.swap_remove(transient));
        }
        let path = self.views[0].store.tier().path(&candidate.checkpoint);
        Err(Error::OtherRanksFailed { path, failures: rank_failures(&failures) })
    }

    fn restored(&self, name: &CheckpointName, Filled { manifest, bytes, .. }: Filled) -> Restored {
        let source = |(view, bytes): (&View<'_>, &super::trial::TierBytes)| SourceBytes {
            tier: view.name.clone(),
            bytes: bytes.read + bytes.received,
            from_peers: bytes.received,
        };
        Restored {
            checkpoint: name.to_string(),
            step: manifest.step,
            attempt: manifest.attempt,
            state: manifest.state,
            rejected: Vec::new(),
            warnings: Vec::new(),
            bytes_read: bytes.iter().map(|bytes| bytes.read + bytes.sent).sum(),
            sources: self.views.iter().zip(&bytes).map(source).collect(),
        }
    }

    /// Commits the restored checkpoint on this rank's node, where that has files of it and a save
    /// was interrupted before it did: else they would be removed as those of a failed save, and be
    /// missing when another node is lost. Returns warnings.
    fn complete(&self, name: &CheckpointName, restored: &Filled) -> Vec<String> {
        let of_node = self.views.iter().filter(|view| view.store.scope() == Scope::Node);
        let complete = |view: &View<'_>| {
            let error = view.store.complete(name, &restored.manifest, &restored.text).err()?;
            let (tier, rank) = (&view.name, self.peers.rank());
            Some(format!("tier {tier}: rank {rank}: {name} is not committed here: {error}"))
        };
        of_node.filter(|view| view.unusable.is_none()).filter_map(complete).collect()
    }

    /// Warns about the copies of the restored checkpoint that could not be used.
    fn warnings(&self, candidate: &Candidate, failures: &[Failure]) -> Vec<String> {
        let tier = |source: Source| &self.views[source.tier].name;
        let unreachable = self.survey.flaws(self.views).map(|(source, flaw)| {
            format!("tier {}: rank {}: {}", tier(source), source.owner(), flaw.reason)
        });
        let refused = self.survey.refused(self.views).map(|(source, reason)| {
            format!("tier {}: rank {}: {reason}", tier(source), source.owner())
        });
        // All ranks of a node may have met the same damage.
        let mut seen = BTreeSet::new();
        let copies = failures.iter().filter_map(|Failure { rank, source, flaw, .. }| {
            let Flaw { reason, is_transient } = flaw;
            let is_new = seen.insert((candidate.disk(*source), reason));
            let text = format!("{} on tier {}: rank {rank}", candidate.checkpoint, tier(*source));
            let rejected = format!("; rejected there{VERIFY_HINT}");
            let end = if *is_transient { "" } else { &rejected };
            is_new.then(|| format!("{text}: {reason}{end}"))
        });
        unreachable.chain(refused).chain(copies).collect()
    }

    /// Copies of a restored checkpoint in which damage was found. On a shared tier all of it is
    /// rejected, as readers need all of it, unless it has intact files that are nowhere else.
    fn bad_copies(&self, candidate: &mut Candidate, failures: &[Failure]) -> Vec<BadCopy> {
        let mut copies: BTreeMap<Source, Option<BTreeSet<usize>>> = BTreeMap::new();
        for failure in failures.iter().filter(|failure| !failure.flaw.is_transient) {
            let disk = candidate.disk(failure.source);
            let damaged = copies.entry(disk).or_insert(Some(BTreeSet::new()));
            match (damaged.as_mut(), failure.saved.clone()) {
                (Some(ranks), Some(more)) => ranks.extend(more),
                _ => *damaged = None,
            }
        }
        let name = parse(candidate);
        let copy = |(source, damaged): (Source, Option<BTreeSet<usize>>)| {
            let is_shared = self.views[source.tier].store.scope() == Scope::Shared;
            let damaged = damaged.filter(|_| !is_shared || candidate.needs(source));
            if damaged.is_none() {
                candidate.withdraw(source);
            }
            BadCopy { name: name.clone(), source, damaged }
        };
        copies.into_iter().map(copy).collect()
    }

    /// Marks copies that are not usable, once a checkpoint has been restored, each by the rank that
    /// sees it. Where that fails on the only tier, all ranks fail together, as a damaged checkpoint
    /// that still counts would make retention remove a good one; else it is a warning. Returns the
    /// warnings of all ranks, given those of this one. Collective.
    fn conclude(&self, copies: &[BadCopy], mut warnings: Vec<String>) -> Result<Vec<String>> {
        warnings.extend(self.read_warnings());
        let mut first = None;
        for BadCopy { name, source, damaged } in copies {
            if source.owner() != self.peers.rank() {
                continue;
            }
            let store = self.views[source.tier].store;
            match store.reject(name, damaged.as_ref()) {
                Err(error) if !error.is_absence() => {
                    warnings.push(error.to_string());
                    first.get_or_insert(error);
                }
                _ => {}
            }
        }
        let is_only = self.views.len() == 1;
        let own = first.filter(|_| is_only).map_or(Ok(warnings), Err);
        let gathered = agree(self.peers, own)?;
        let warnings = gathered.map_err(|abort| abort.into_error(&self.views[0].store.root()))?;
        Ok(warnings.into_iter().flatten().collect())
    }

    /// Reads of this rank that were right only when repeated.
    fn read_warnings(&self) -> Vec<String> {
        let rank = self.peers.rank();
        let of_tier = |View { name, store, .. }: &View<'_>| {
            let texts = store.take_read_warnings().into_iter();
            texts.map(|text| format!("tier {name}: rank {rank}: {text}")).collect::<Vec<_>>()
        };
        self.views.iter().flat_map(of_tier).collect()
    }
}

/// Takes copies in which a trial has failed for unusable: damaged ones for all ranks that see them,
/// those that a rank could not read for now for that rank. What only arrived damaged is sent again,
/// as long as there are `resends`.
fn exclude(version: &mut Version, found: &[Failure], resends: &mut usize) {
    if *resends > 0 && found.iter().all(|failure| failure.is_of_transport) {
        *resends -= 1;
        return;
    }
    for failure in found {
        let Failure { source, saved, flaw, .. } = failure;
        if flaw.is_transient {
            version.avoid(*source, saved.clone());
        } else {
            version.quarantine(*source, saved.clone());
        }
    }
}

fn parse(candidate: &Candidate) -> CheckpointName {
    candidate.checkpoint.parse().expect("the plan has only names of checkpoints")
}

fn on_tier(source: Source, flaw: &Flaw) -> Failure {
    Failure {
        rank: source.owner(),
        source,
        saved: None,
        flaw: flaw.clone(),
        is_of_transport: false,
    }
}

/// The failure of a checkpoint of which some saved ranks' files are nowhere.
fn incomplete(version: &Version, missing: &[usize]) -> Failure {
    let first = missing[0];
    let reason = format!(
        "no tier has the files of {} of the {} ranks that saved it, the first of them rank \
         {first}; if a restore had rejected them, `yardstick ckpt verify --checkpoint` reinstates \
         intact ones",
        missing.len(),
        version.world()
    );
    let flaw = Flaw { reason, is_transient: false };
    let source = version.manifest;
    Failure { rank: source.owner(), source, saved: None, flaw, is_of_transport: false }
}

fn rank_failures(failures: &[Failure]) -> Vec<RankFailure> {
    let failure = |Failure { rank, flaw, .. }: &Failure| RankFailure {
        rank: *rank,
        reason: flaw.reason.clone(),
    };
    failures.iter().map(failure).collect()
}

/// Returns all copies of a checkpoint, of which no part is of use any more.
fn all_copies(candidate: &Candidate) -> impl Iterator<Item = BadCopy> {
    let name = parse(candidate);
    let holders = candidate.holders.iter();
    holders.map(move |&source| BadCopy { name: name.clone(), source, damaged: None })
}
