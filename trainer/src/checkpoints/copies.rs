//! Copies of checkpoints to farther tiers: their routes, reports of failed copies, and the wait for
//! copies at the end of an attempt.

use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint::promotion::{self, Holding, Promoter, PromoterOptions, Route, RouteStatus, Share};
use checkpoint::{Failpoints, Member};
use serde::{Deserialize, Serialize};

use super::wait::Wait;
use super::{Checkpointer, takeover};
use crate::failure::Outcome;
use crate::ranks::Ranks;
use crate::step::Trainer;
use crate::tier_set::TierSet;

/// Interval between checks for a stop request while waiting for copies.
const STOP_POLL: Duration = Duration::from_millis(100);

/// Copies from the tier that ranks save on to each farther tier that all ranks can use.
#[derive(Debug)]
pub(super) struct Copies {
    promoter: Promoter,
    /// Position of each route's target among the tiers of the run.
    targets: Vec<usize>,
    /// Targets to which copies from another tier failed; they count as failing until a copy
    /// succeeds.
    unsettled: TierSet,
}

/// Tier that copies can be sent to.
#[derive(Debug)]
pub(super) struct Target<'run> {
    /// Position among the tiers of the run.
    pub(super) position: usize,
    pub(super) member: &'run Member,
    /// Number of checkpoints kept there.
    pub(super) keep: usize,
}

/// Error of a route on one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Cause {
    /// Position of the target.
    tier: usize,
    error: String,
}

/// Tier to which copies begin to fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failing {
    pub(super) tier: usize,
    /// First rank that knows the cause.
    pub(super) rank: Option<usize>,
    pub(super) error: String,
}

impl Copies {
    /// Starts a thread for each target; `None` without any.
    pub(super) fn start(
        from: &Member,
        targets: &[Target<'_>],
        share: Share,
        unsettled: TierSet,
        bytes_per_second_max: Option<u64>,
        failpoints: impl Failpoints + Send + Sync + 'static,
    ) -> Outcome<Option<Self>> {
        if targets.is_empty() {
            return Ok(None);
        }
        let route = |target: &Target<'_>| Route {
            from: Arc::clone(&from.store),
            to: Arc::clone(&target.member.store),
            name: target.member.name.clone(),
            keep: target.keep,
        };
        let options = PromoterOptions { bytes_per_second_max, ..PromoterOptions::default() };
        let routes = targets.iter().map(route).collect();
        let promoter = Promoter::start(routes, share, options, Arc::new(failpoints))?;
        let targets = targets.iter().map(|target| target.position).collect();
        Ok(Some(Self { promoter, targets, unsettled }))
    }

    /// Starts to copy a checkpoint to the farther tiers among `due`.
    pub(super) fn submit(&self, checkpoint: &str, due: TierSet) {
        for (route, tier) in self.targets.iter().enumerate() {
            if due.contains(*tier)
                && let Err(error) = self.promoter.submit(checkpoint, route)
            {
                tracing::error!("{error}");
            }
        }
    }

    /// Returns the tiers to which this rank's last try failed, also from another tier. Allocates
    /// nothing.
    pub(super) fn failing(&self) -> TierSet {
        let mut failing = TierSet::default();
        for (route, tier) in self.targets.iter().enumerate() {
            let is_unsettled =
                self.unsettled.contains(*tier) && !self.promoter.has_succeeded(route);
            if is_unsettled || self.promoter.is_failing(route) {
                failing.insert(*tier);
            }
        }
        failing
    }

    /// Returns the state of each route.
    pub(super) fn status(&self) -> Vec<RouteStatus> {
        self.promoter.status()
    }

    /// Returns the state of each route, with the position of its target.
    pub(super) fn status_by_tier(&self) -> impl Iterator<Item = (usize, RouteStatus)> {
        self.targets.iter().copied().zip(self.promoter.status())
    }

    /// Returns this rank's errors on these tiers.
    fn causes(&self, of: TierSet) -> Vec<Cause> {
        let failing = self.failing();
        let is_asked = |tier: usize| of.contains(tier) && failing.contains(tier);
        let routes = self.status_by_tier().filter(|(tier, _)| is_asked(*tier));
        let cause =
            |(tier, status): (usize, RouteStatus)| Some(Cause { tier, error: status.last_error? });
        routes.filter_map(cause).collect()
    }

    /// Resumes the copies of a restored checkpoint, which the ranks' disks may have in another
    /// order than those that saved it. Returns a warning if it is on no farther tier, and cannot be
    /// copied to any. Collective.
    fn resume(
        &self,
        checkpoint: &str,
        members: &[Member],
        present: &Member,
        ranks: &Ranks<'_>,
    ) -> Outcome<Option<String>> {
        let here = Holding::of(&present.store, checkpoint).ok();
        match promotion::assign(&ranks.gather(&here)?) {
            Ok(mut assigned) => {
                let saved_ranks = assigned.swap_remove(ranks.rank());
                for route in 0..self.targets.len() {
                    self.promoter.submit_restored(checkpoint, route, saved_ranks.clone())?;
                }
                Ok(None)
            }
            Err(reason) => {
                let mut targets = self.targets.iter().map(|&tier| &members[tier].store);
                let is_safe = targets.any(|store| store.holds(checkpoint).unwrap_or(false));
                let present = &present.name;
                let warning = || {
                    format!(
                        "no tier that is copied to has the restored checkpoint {checkpoint}, and \
                         it cannot be copied from tier {present}: {reason}"
                    )
                };
                Ok((!is_safe).then(warning))
            }
        }
    }

    /// Waits until this rank has nothing left to copy. Returns whether it finished in time. A long
    /// wait is reported.
    #[must_use]
    fn finish(&self, mut wait: Wait<'_>, report: &dyn Fn(String)) -> bool {
        let mut reported = None;
        loop {
            let left = wait.left();
            let failing = Some(self.failing());
            if wait.is_long()
                && reported != failing
                && let Some(text) = self.in_progress(left)
            {
                reported = failing;
                report(text);
            }
            let is_finished = self.promoter.finish(Instant::now() + left.min(STOP_POLL));
            if is_finished || left.is_zero() {
                return is_finished;
            }
        }
    }

    /// Returns a sentence about the copies in progress.
    fn in_progress(&self, left: Duration) -> Option<String> {
        let route = |RouteStatus { tier, in_progress, is_failing, last_error, .. }| {
            let name: String = in_progress?;
            let error = last_error.filter(|_| is_failing);
            let error = error.map_or(String::new(), |error| format!(" (failing: {error})"));
            Some(format!("{name} to tier {tier}{error}"))
        };
        let routes: Vec<_> = self.status().into_iter().filter_map(route).collect();
        let (routes, seconds) = (routes.join(", "), left.as_secs());
        let is_any = !routes.is_empty();
        is_any.then(|| format!("waits up to {seconds} s for copies: {routes}"))
    }
}

/// Tiers to which copies fail on some rank, known to all ranks from the votes of their steps.
#[derive(Debug, Default)]
pub(super) struct CopyWatch {
    failing: TierSet,
}

/// Changes since the step before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Tiers to which copies begin to fail.
    pub(super) failing: Vec<Failing>,
    /// Tiers to which copies succeed again.
    pub(super) recovered: Vec<usize>,
}

impl CopyWatch {
    /// Compares the votes of a step with those of the step before. Collective where copies to
    /// another tier begin to fail: each rank then sends its error.
    pub(super) fn observe(
        &mut self,
        failing: TierSet,
        copies: Option<&Copies>,
        ranks: &Ranks<'_>,
    ) -> Outcome<Changes> {
        let before = std::mem::replace(&mut self.failing, failing);
        // A tier that is saved on now is no longer a target.
        let is_target = |tier: &usize| copies.is_none_or(|copies| copies.targets.contains(tier));
        let recovered = before.without(failing).positions().filter(is_target).collect();
        let new = failing.without(before);
        if new.is_empty() {
            return Ok(Changes { failing: Vec::new(), recovered });
        }
        let own = copies.map(|copies| copies.causes(new)).unwrap_or_default();
        let causes = ranks.gather(&own)?;
        let failing = new.positions().map(|tier| first_cause(&causes, tier)).collect();
        Ok(Changes { failing, recovered })
    }
}

/// Returns the cause from the first rank that has one for a tier.
fn first_cause(causes: &[Vec<Cause>], tier: usize) -> Failing {
    let of_ranks = causes.iter().enumerate().flat_map(|(rank, causes)| {
        causes.iter().filter(|cause| cause.tier == tier).map(move |cause| (rank, &cause.error))
    });
    let first = of_ranks.into_iter().next();
    let error = first.map_or("a try has failed", |(_, error)| error.as_str()).to_owned();
    Failing { tier, rank: first.map(|(rank, _)| rank), error }
}

impl Checkpointer {
    /// Starts the threads that copy checkpoints from the tier in use to farther tiers, after those
    /// that copied from another tier have stopped.
    pub(crate) fn start_copies(&mut self, trainer: &Trainer<'_>) -> Outcome<()> {
        let before = self.copies.take().map(|copies| copies.status()).unwrap_or_default();
        self.earlier_routes = combined(&self.earlier_routes, before);
        let ranks = trainer.ranks();
        let present = self.save_tier.position();
        let members = self.tiers.members();
        let target = |position: usize| Target {
            position,
            member: &members[position],
            keep: self.planned[position].keep,
        };
        let farther =
            takeover::usable(&self.tiers).into_iter().filter(|&position| position > present);
        let targets: Vec<_> = farther.map(target).collect();
        let attempt = self.claim.attempt;
        let share = Share { rank: ranks.rank(), world: ranks.world(), attempt };
        let failpoints = trainer.injector().after(trainer.completed_steps());
        let limit = self.config.copy_bytes_per_second_max;
        let copies = Copies::start(
            self.present(),
            &targets,
            share,
            self.copy_watch.failing,
            limit,
            failpoints,
        )?;
        self.copies = copies;
        Ok(())
    }

    /// Resumes what an earlier attempt may have left half-way: copies of the restored checkpoint,
    /// if the tier in use has all of it. Otherwise ranks would wait at the end for a copy that
    /// never arrives; that is an anomaly where no farther tier has the checkpoint. Collective.
    pub(super) fn resume_copies(&self, checkpoint: &str, ranks: &Ranks<'_>) -> Outcome<()> {
        let Some(copies) = &self.copies else { return Ok(()) }; // the same on all ranks
        let warning = copies.resume(checkpoint, self.tiers.members(), self.present(), ranks)?;
        if ranks.rank() == 0
            && let Some(text) = warning
        {
            self.warn(None, text);
        }
        Ok(())
    }

    /// Returns the tiers to which this rank's copies fail.
    pub(crate) fn failing_copies(&self) -> TierSet {
        self.copies.as_ref().map(Copies::failing).unwrap_or_default()
    }

    /// Warns where copies to a tier begin to fail on any rank, or succeed again. `failing` is the
    /// result of the ranks' votes in a step. Collective.
    pub(crate) fn watch_copies(
        &mut self,
        step: u64,
        failing: TierSet,
        ranks: &Ranks<'_>,
    ) -> Outcome<()> {
        let Changes { failing, recovered } =
            self.copy_watch.observe(failing, self.copies.as_ref(), ranks)?;
        if ranks.rank() != 0 {
            return Ok(());
        }
        let name = |tier: usize| &self.tiers.members()[tier].name;
        for Failing { tier, rank, error } in failing {
            let text = format!("tier {}: copies fail, and are tried again: {error}", name(tier));
            self.warn_of_rank(Some(step), rank, text);
        }
        for tier in recovered {
            self.warn(Some(step), format!("tier {}: copies succeed again", name(tier)));
        }
        Ok(())
    }

    /// Returns the figures of all copies of the attempt, for each tier that was a target.
    pub(super) fn routes(&self) -> Vec<RouteStatus> {
        let present = self.copies.as_ref().map(Copies::status).unwrap_or_default();
        combined(&self.earlier_routes, present)
    }

    /// Returns how long a requested stop waits for copies; `None` without farther tiers.
    pub(crate) fn stop_grace(&self) -> Option<Duration> {
        self.copies.is_some().then_some(self.config.stop_grace)
    }

    /// Waits for the copies to farther tiers: for `checkpoint.deadline` at most, and for
    /// `stop_grace` once a stop is requested. Warns of copies that are late.
    pub(crate) fn finish_copies(&mut self, stop_requested: &dyn Fn() -> bool) {
        let Some(copies) = &self.copies else { return };
        let is_finished = copies.finish(self.wait(stop_requested), &|text| self.events.note(text));
        for RouteStatus { tier, in_progress, is_failing, last_error, .. } in copies.status() {
            let text = if is_failing {
                let error = last_error.unwrap_or_default();
                format!("tier {tier} has no newer checkpoint: {error}")
            } else if !is_finished && let Some(name) = in_progress {
                format!("tier {tier} has no newer checkpoint: the next attempt goes on with {name}")
            } else {
                continue;
            };
            self.warn(self.committed_step, text);
        }
        self.warn_of_reads();
    }
}

/// Combines figures of copies to the same tiers, first from one tier and then from another.
fn combined(earlier: &[RouteStatus], later: Vec<RouteStatus>) -> Vec<RouteStatus> {
    let mut all = earlier.to_vec();
    for route in later {
        match all.iter_mut().find(|found| found.tier == route.tier) {
            None => all.push(route),
            Some(found) => {
                found.durable_step = found.durable_step.max(route.durable_step);
                found.in_progress = route.in_progress;
                found.promoted.extend(route.promoted);
                found.bytes += route.bytes;
                found.seconds += route.seconds;
                found.failures += route.failures;
                found.dropped += route.dropped;
                found.is_failing = route.is_failing;
                found.last_error = route.last_error.or(found.last_error.take());
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::thread;

    use checkpoint::tier::{LocalTier, Scope};
    use checkpoint::{Claim, Dtype, Identity, NoFailpoints, Part, Save, Store, TensorBox};
    use collectives::{Single, Threads};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn member(root: &Path, name: &str, scope: Scope) -> Member {
        let identity = Identity::new("run", "workload");
        let store = Store::open(Arc::new(LocalTier::new(root.join(name))), &identity).unwrap();
        let store = Arc::new(store.with_scope(scope));
        Member { name: name.to_owned(), scope, store }
    }

    /// Saves from two ranks, on the disks of two nodes.
    fn save(root: &Path) -> String {
        let checkpoints = on_two_ranks(|ranks| {
            let store = member(root, ["node0", "node1"][ranks.rank()], Scope::Node).store;
            let claim = Claim { attempt: 1, nonce: 1 };
            let state = serde_json::json!({});
            let request = Save { step: 8, claim, number: 0, state, parent: None };
            let tensor = TensorBox::whole(&format!("of {}", ranks.rank()), Dtype::U8, &[100]);
            let parts = [Part { tensor, data: &[7; 100] }];
            store.save(&request, &parts, ranks, &NoFailpoints).unwrap().checkpoint
        });
        checkpoints[0].clone()
    }

    /// Resumes the copies to a shared tier, with two ranks on these nodes. Returns their warnings,
    /// and whether the shared tier has the checkpoint.
    fn resume_on(root: &Path, checkpoint: &str, nodes: [&str; 2]) -> (Vec<Option<String>>, bool) {
        let warnings = on_two_ranks(|ranks| {
            let present = member(root, nodes[ranks.rank()], Scope::Node);
            let members = [present.clone(), member(root, "shared", Scope::Shared)];
            let target = Target { position: 1, member: &members[1], keep: 0 };
            let share = Share { rank: ranks.rank(), world: 2, attempt: 2 };
            let none = TierSet::default();
            let copies = Copies::start(&present, &[target], share, none, None, NoFailpoints);
            let copies = copies.unwrap().unwrap();
            let warning = copies.resume(checkpoint, &members, &present, ranks).unwrap();
            assert!(copies.finish(Wait::start(LONG, LONG, &|| false), &|text| panic!("{text}")));
            warning
        });
        let is_there = member(root, "shared", Scope::Shared).store.holds(checkpoint).unwrap();
        (warnings, is_there)
    }

    fn on_two_ranks<T: Send>(run: impl Fn(&Ranks<'_>) -> T + Sync) -> Vec<T> {
        let ranks = Threads::group(2);
        thread::scope(|scope| {
            let run = &run;
            let threads =
                ranks.iter().map(|rank| scope.spawn(move || run(&Ranks::new(rank, LONG))));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_that_come_back_in_another_order_resume_the_copies() {
        for nodes in [["node0", "node1"], ["node1", "node0"]] {
            let folder = tempfile::tempdir().unwrap();
            let checkpoint = save(folder.path());
            let resumed = resume_on(folder.path(), &checkpoint, nodes);
            assert_eq!(resumed, (vec![None, None], true), "{nodes:?}");
        }
    }

    #[test]
    fn a_restored_checkpoint_that_cannot_be_copied_is_an_anomaly_unless_it_is_safe() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = save(folder.path());
        let resume = |nodes| resume_on(folder.path(), &checkpoint, nodes);
        let (warnings, is_there) = resume(["node1", "node2"]);
        let text = warnings[0].as_ref().unwrap();
        assert!(!is_there && text.contains("first those of rank 0"), "{text}");
        assert_eq!(resume(["node0", "node1"]), (vec![None, None], true));
        assert_eq!(resume(["node1", "node2"]), (vec![None, None], true));
    }

    fn set(tiers: &[usize]) -> TierSet {
        let mut set = TierSet::default();
        tiers.iter().for_each(|&tier| set.insert(tier));
        set
    }

    #[test]
    fn a_tier_is_reported_when_it_begins_to_fail_and_when_it_recovers() {
        let single = Single::new();
        let ranks = Ranks::new(&single, Duration::from_secs(60));
        let mut watch = CopyWatch::default();
        let mut observe = |tiers: &[usize]| {
            let changes = watch.observe(set(tiers), None, &ranks).unwrap();
            let failing = changes.failing.iter().map(|failing| failing.tier).collect();
            [failing, changes.recovered] as [Vec<usize>; 2]
        };
        let none: Vec<usize> = Vec::new();
        assert_eq!(observe(&[]), [none.clone(), none.clone()]);
        assert_eq!(observe(&[1]), [vec![1], none.clone()]);
        assert_eq!(observe(&[1, 2]), [vec![2], none.clone()]);
        assert_eq!(observe(&[2]), [none.clone(), vec![1]]);
        assert_eq!(observe(&[]), [none, vec![2]]);
    }

    #[test]
    fn figures_of_copies_from_two_tiers_are_added() {
        let route = |tier: &str, failures, step| RouteStatus {
            tier: tier.to_owned(),
            failures,
            durable_step: step,
            ..RouteStatus::default()
        };
        let earlier = [route("shared", 1, Some(8)), route("object", 2, Some(4))];
        let all = combined(&earlier, vec![route("object", 3, Some(12))]);
        assert_eq!(all, [route("shared", 1, Some(8)), route("object", 5, Some(12))]);
    }

    #[test]
    fn the_first_rank_that_knows_the_cause_is_named() {
        let cause = |tier, error: &str| Cause { tier, error: error.to_owned() };
        let causes = [vec![], vec![cause(2, "AccessDenied")], vec![cause(1, "ENOSPC")]];
        let failing = |tier| {
            let Failing { rank, error, .. } = first_cause(&causes, tier);
            (rank, error)
        };
        assert_eq!(failing(1), (Some(2), "ENOSPC".to_owned()));
        assert_eq!(failing(2), (Some(1), "AccessDenied".to_owned()));
        assert_eq!(failing(3), (None, "a try has failed".to_owned()));
    }
}
