//! Silent data corruption: sums in the votes of a step that have to be equal, or to add up, and who
//! is to blame where they do not.
//!
//! - Replicas: ranks that hold the same weights, and the same moments, have the same sums.
//! - Reduction: the weighted sum is linear, so the sums over the ranks' own gradients add up to
//!   that over the reduced ones, but for rounding.
//! - Gradients: a rank that computes the micro-batches of another rank gets its sums, bit for bit,
//!   as both compute with the same kernels.
//!
//! Nothing is updated before a step whose sums do not fit was computed again, with other partners.
//! By what the ranks found in both, a fault has passed or stays, and a rank has it or is unknown.

use models::ops::gradient_norm::ElementSums;
use record::{Corrupted, Opinions, Repeated, groups};

use super::consensus::{Vote, Votes};
use super::scalars::{REPLICA_BUFFERS, ReplicaSums};

/// Relative error of an addition in f32.
const ROUNDING: f64 = 1.0 / (1_u64 << 24) as f64;

/// Standard deviations of rounding that a difference of sums has to exceed.
const DEVIATIONS: f64 = 10.0;

/// Factor of the squares of most ranks beyond which those of a rank are suspicious.
const SUSPICIOUS: f64 = 16.0;

/// Checks of one computation of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Checks {
    /// Compares replicas.
    pub(super) replicas: bool,
    /// Computes the gradients of another rank too: the distance to it.
    pub(super) shift: Option<usize>,
    /// Computes a step again if its gradients are unusual.
    pub(super) suspects: bool,
    /// Computes a step again.
    pub(super) is_repeat: bool,
}

impl Checks {
    /// Returns whether local gradients are added up before they are reduced. On a single rank the
    /// reduced gradients are the local ones, but may be sums of those of several micro-batches.
    pub(super) fn adds_up(self, is_alone: bool) -> bool {
        !is_alone || self.shift.is_some()
    }
}

/// Properties of a rank that decide which others it is compared with.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Member {
    /// Everything that decides the bits of its gradients: device, driver, libraries, kernels.
    pub(super) kernels: String,
    /// Number of the shard of the weights that it stores.
    pub(super) shard: usize,
}

/// Ranks that are compared with each other.
#[derive(Debug)]
pub(super) struct Partners {
    /// Ranks that compute the same bits from the same input, in order; each rank is in one class.
    classes: Vec<Vec<usize>>,
    /// Ranks that hold the same.
    replicas: Vec<Vec<usize>>,
    /// Reduced gradients of a step that are added up: one for each micro-batch if gradients are
    /// sharded.
    reductions: usize,
}

/// Recomputation that gave other sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Disagreement {
    checked: usize,
    by: usize,
}

/// Place at which a wrong sum of gradients shows, also in the sums over a single bucket. A round is
/// a computation of the step, the first one or the repetition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Evidence {
    /// Gradients of a rank differ between the rounds.
    Unsteady { rank: usize },
    /// Gradients of a rank, and those that another one computed for it.
    Disagreement { checked: usize, by: usize, round: usize },
    /// Reduced gradients, and those of all ranks.
    Imbalance { round: usize },
}

/// A sum that is wrong, and who has it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Blame {
    pub(super) what: Corrupted,
    pub(super) evidence: Option<Evidence>,
    /// Rank that has it, if the sums can say.
    pub(super) rank: Option<usize>,
    /// Result of computing it again, if that was possible.
    pub(super) repeat: Option<Repeated>,
    pub(super) sums: Differing,
    /// Number of ranks that found the expected sum, and another one.
    pub(super) votes: Opinions,
}

/// Two sums that should be equal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Differing {
    pub(super) found: f64,
    pub(super) expected: f64,
}

/// Returns the sums that differ, the weighted ones first.
fn differing(found: ElementSums, expected: ElementSums) -> Option<Differing> {
    let pairs = [(found.weighted, expected.weighted), (found.squares, expected.squares)];
    let differs = |(found, expected): &(f64, f64)| found.to_bits() != expected.to_bits();
    let (found, expected) = pairs.into_iter().find(differs)?;
    Some(Differing { found, expected })
}

impl Partners {
    /// Groups the ranks. Ranks that update the same state with other kernels need not agree on it.
    pub(super) fn new(members: &[Member], updates_are_shared: bool, reductions: usize) -> Self {
        let ranks = || members.iter().enumerate();
        let kernels = |member: &Member| updates_are_shared.then(|| member.kernels.clone());
        let of_replica = |member: &Member| (member.shard, kernels(member));
        Self {
            classes: groups(ranks().map(|(rank, member)| (rank, &member.kernels))),
            replicas: groups(ranks().map(|(rank, member)| (rank, of_replica(member)))),
            reductions,
        }
    }

    /// Returns whether any ranks hold the same.
    pub(super) fn has_replicas(&self) -> bool {
        self.replicas.iter().any(|group| group.len() > 1)
    }

    /// Returns whether any ranks compute the same from the same input.
    pub(super) fn has_equals(&self) -> bool {
        self.classes.iter().any(|class| class.len() > 1)
    }

    /// Returns the rank whose gradients a rank computes at a distance: itself if it has no equal.
    pub(super) fn checked_by(&self, rank: usize, shift: usize) -> usize {
        let Some(class) = self.classes.iter().find(|class| class.contains(&rank)) else {
            return rank;
        };
        let others = class.len() - 1;
        let at = class.iter().position(|&other| other == rank).unwrap_or(0);
        let distance = if others == 0 { 0 } else { 1 + shift % others };
        class[(at + distance) % class.len()]
    }

    /// Describes the ranks whose gradients no other rank can check.
    pub(super) fn unchecked_gradients(&self) -> Option<String> {
        let text =
            "no other rank has the same device, driver and libraries; it computes them again";
        alone(&self.classes).map(|ranks| format!("gradients of {ranks}: {text}"))
    }

    /// Describes the ranks whose weights no other rank has.
    pub(super) fn unchecked_weights(&self) -> Option<String> {
        alone(&self.replicas).map(|ranks| format!("weights of {ranks}: no other rank has the same"))
    }

    /// Finds ranks that hold other weights or moments than those that should hold the same.
    pub(super) fn differing_replica(
        &self,
        sums: impl Fn(usize) -> Option<ReplicaSums>,
    ) -> Option<Blame> {
        let of_buffer = |buffer: usize| {
            let sums = |rank: usize| sums(rank).map(|buffers| buffers[buffer]);
            self.replicas.iter().find_map(|group| minority(group, sums, Corrupted::Replicas))
        };
        (0..REPLICA_BUFFERS).find_map(of_buffer)
    }

    /// Finds ranks that computed other gradients from the same input than the ranks with the same
    /// kernels.
    pub(super) fn differing_self_test(
        &self,
        sums: impl Fn(usize) -> Option<ElementSums>,
    ) -> Option<Blame> {
        self.classes.iter().find_map(|group| minority(group, &sums, Corrupted::SelfTest))
    }

    /// Returns the recomputations of a step that gave other sums.
    fn disagreements(&self, votes: &Votes, checks: Checks) -> impl Iterator<Item = Disagreement> {
        let of = move |shift: usize, by: usize, vote: Vote| {
            let checked = self.checked_by(by, shift);
            let local = votes.of(checked).local;
            let differs = vote.recomputed.is_some_and(|sums| !sums.is_same(local));
            differs.then_some(Disagreement { checked, by })
        };
        let of_all = move |shift: usize| {
            let votes = votes.all().enumerate();
            votes.filter_map(move |(by, vote)| of(shift, by, vote))
        };
        checks.shift.into_iter().flat_map(of_all)
    }

    /// Returns whether sums of a step do not fit.
    pub(super) fn is_doubtful(&self, votes: &Votes, checks: Checks) -> bool {
        self.imbalance(votes).is_some() || self.disagreements(votes, checks).next().is_some()
    }

    /// Decides what was wrong, from a step that was doubtful and its repetition.
    pub(super) fn judge(&self, before: Judged<'_>, after: Judged<'_>) -> Option<Blame> {
        let [first, second] =
            [before, after].map(|judged| judged.votes.all().collect::<Vec<Vote>>());
        let disagreements = [before, after]
            .map(|judged| self.disagreements(judged.votes, judged.checks).collect::<Vec<_>>());
        let [was, is] = [before, after].map(|judged| self.imbalance(judged.votes));
        let disagrees_again = !disagreements[1].is_empty();
        // Nothing is repaired by a repetition that does not fit itself.
        let recurs = disagrees_again || is.is_some();
        let repeat = Some(if recurs { Repeated::Persistent } else { Repeated::Transient });
        // A rank that differs from itself needs no other opinion.
        let is_unsteady = |rank: &usize| {
            let [first, second] = [&first[*rank], &second[*rank]];
            !first.local.is_same(second.local)
                || first.loss_sum.to_bits() != second.loss_sum.to_bits()
        };
        let unsteady: Vec<usize> = (0..first.len()).filter(is_unsteady).collect();
        if let Some(&rank) = unsteady.first() {
            let [own, again] = [first[rank], second[rank]];
            let other = disagreements[1].iter().find(|found| found.checked == rank);
            let expected = other.and_then(|found| second[found.by].recomputed);
            let expected = expected.unwrap_or(again.local);
            // The other rank may have found what this one found only in its first computation.
            let wrong = if own.local.is_same(expected) { again.local } else { own.local };
            let sums = match differing(wrong, expected) {
                Some(sums) => sums,
                None => Differing { found: own.loss_sum, expected: again.loss_sum },
            };
            return Some(Blame {
                what: Corrupted::Gradients,
                evidence: Some(Evidence::Unsteady { rank }),
                rank: (unsteady.len() == 1).then_some(rank),
                repeat,
                sums,
                votes: self.opinions(rank, expected, before, after),
            });
        }
        if let Some(Disagreement { checked, by }) =
            disagreements.iter().rev().find_map(|found| found.first().copied())
        {
            let rank = if disagrees_again {
                common_rank(&disagreements.concat())
            } else {
                // The ranks that were checked have computed the same twice.
                disagreements[0].iter().all(|found| found.by == by).then_some(by)
            };
            let round = usize::from(disagrees_again);
            let recomputed = [&first, &second][round][by].recomputed.unwrap_or_default();
            let own = second[checked].local;
            let (found, expected) = match rank {
                Some(rank) if rank == checked => (own, recomputed),
                _ => (recomputed, own),
            };
            return Some(Blame {
                what: Corrupted::Gradients,
                evidence: Some(Evidence::Disagreement { checked, by, round }),
                rank,
                repeat,
                sums: differing(found, expected)?,
                votes: self.opinions(checked, expected, before, after),
            });
        }
        Some(Blame {
            what: Corrupted::Reduction,
            evidence: Some(Evidence::Imbalance { round: usize::from(is.is_some()) }),
            rank: None,
            repeat,
            sums: is.or(was)?,
            votes: Opinions { expected: 1, other: 1 },
        })
    }

    /// Counts the sums over a rank's gradients, its own and those of the ranks that computed them
    /// too, in both computations of a step.
    fn opinions(
        &self,
        rank: usize,
        expected: ElementSums,
        before: Judged<'_>,
        after: Judged<'_>,
    ) -> Opinions {
        let mut count = Opinions { expected: 0, other: 0 };
        for Judged { votes, checks } in [before, after] {
            let all: Vec<Vote> = votes.all().collect();
            let own = all[rank].local;
            let by = |other: &usize| {
                checks.shift.is_some_and(|shift| self.checked_by(*other, shift) == rank)
            };
            let others = (0..all.len()).filter(by).filter_map(|other| all[other].recomputed);
            for sums in others.chain([own]) {
                let side = match sums.is_same(expected) {
                    true => &mut count.expected,
                    false => &mut count.other,
                };
                *side += 1;
            }
        }
        count
    }
}

/// A step's votes, and the checks that it made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Judged<'a> {
    pub(super) votes: &'a Votes,
    pub(super) checks: Checks,
}

/// Returns the only rank that has a part in all disagreements. Of two ranks that disagree both
/// have.
fn common_rank(disagreements: &[Disagreement]) -> Option<usize> {
    let first = disagreements.first()?;
    let is_in_all =
        |rank: &usize| disagreements.iter().all(|found| [found.checked, found.by].contains(rank));
    let mut candidates = vec![first.checked, first.by];
    candidates.dedup();
    candidates.retain(is_in_all);
    if let [rank] = candidates[..] { Some(rank) } else { None }
}

/// Lists the ranks of groups of one, if there are any.
fn alone(groups: &[Vec<usize>]) -> Option<String> {
    let ranks = groups.iter().filter(|group| group.len() == 1).map(|group| group[0]);
    let ranks: Vec<String> = ranks.map(|rank| rank.to_string()).collect();
    match (ranks.len(), groups.len()) {
        (0, _) => None,
        (1, _) => Some(format!("rank {}", ranks[0])),
        (alone, all) if alone == all => Some("all ranks".to_owned()),
        _ => Some(format!("ranks {}", ranks.join(", "))),
    }
}

/// Finds a sum of a group that is not that of most ranks; without a majority no rank is to blame.
fn minority(
    group: &[usize],
    sums: impl Fn(usize) -> Option<ElementSums>,
    what: Corrupted,
) -> Option<Blame> {
    let of = |rank: usize| sums(rank).unwrap_or_default();
    if group.iter().all(|&rank| of(rank).is_same(of(group[0]))) {
        return None; // as always: nothing is allocated
    }
    let same = |rank: usize| group.iter().filter(|&&other| of(other).is_same(of(rank))).count();
    let most = *group.iter().max_by_key(|&&rank| (same(rank), std::cmp::Reverse(rank)))?;
    let expected = same(most);
    let others: Vec<usize> =
        group.iter().copied().filter(|&rank| !of(rank).is_same(of(most))).collect();
    let first = *others.first()?;
    let is_majority = 2 * expected > group.len();
    Some(Blame {
        what,
        evidence: None,
        rank: (is_majority && others.len() == 1).then_some(first),
        repeat: None,
        sums: differing(of(first), of(most))?,
        votes: Opinions { expected, other: others.len() },
    })
}

impl Partners {
    /// Returns both sums if the reduced gradients are not the sum of those of the ranks.
    fn imbalance(&self, votes: &Votes) -> Option<Differing> {
        let sums = |vote: Vote| BucketSums {
            local: vote.local,
            reduced: vote.reduced,
            ..BucketSums::default()
        };
        self.imbalance_of(votes.all().map(sums))
    }

    /// Returns both sums if the reduced gradients of ranks are not the sum of their own.
    ///
    /// R ranks add up n elements with an error of at most 2^-24 of each partial sum, of random
    /// sign; so the variance of the difference is at most 2^-48 R Q, where Q is the sum of the
    /// squares of all local and of the reduced gradients. Where the reduced gradients of M
    /// micro-batches are added up, each of these sums adds at most the squares of the last one.
    fn imbalance_of(&self, ranks: impl Iterator<Item = BucketSums>) -> Option<Differing> {
        let mut local = ElementSums::default();
        let mut reduced = ElementSums::default();
        let mut count = 0.0;
        for sums in ranks {
            local += sums.local;
            reduced += sums.reduced;
            count += 1.0;
        }
        let added = (self.reductions - 1) as f64 * reduced.squares;
        let deviation = ROUNDING * (count * (local.squares + reduced.squares) + added).sqrt();
        let fits = (reduced.weighted - local.weighted).abs() <= DEVIATIONS * deviation;
        // Also if one is not finite.
        (!fits).then_some(Differing { found: reduced.weighted, expected: local.weighted })
    }

    /// Returns whether evidence shows in a bucket, of which all ranks have sums.
    pub(super) fn shows(&self, evidence: Evidence, ranks: &[Rounds]) -> bool {
        match evidence {
            Evidence::Unsteady { rank } => !ranks[rank][0].local.is_same(ranks[rank][1].local),
            Evidence::Disagreement { checked, by, round } => {
                !ranks[by][round].recomputed.is_same(ranks[checked][round].local)
            }
            Evidence::Imbalance { round } => {
                self.imbalance_of(ranks.iter().map(|rounds| rounds[round])).is_some()
            }
        }
    }
}

/// Returns whether the gradients of a rank are much larger than those of most ranks. Of two, either
/// can be unusual.
pub(super) fn is_suspicious(votes: &Votes) -> bool {
    let squares = || votes.all().map(|vote| vote.local.squares);
    let most = squares().fold(0.0, f64::max);
    let (ranks, smaller) =
        (squares().count(), squares().filter(|it| SUSPICIOUS * it < most).count());
    ranks > 2 && 2 * smaller > ranks
}

/// Sums over one bucket of gradients.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct BucketSums {
    pub(super) local: ElementSums,
    pub(super) reduced: ElementSums,
    pub(super) recomputed: ElementSums,
}

/// Sums of a rank over one bucket in both rounds.
pub(super) type Rounds = [BucketSums; 2];

impl BucketSums {
    /// Number of fields.
    pub(super) const FIELDS: usize = 6;

    pub(super) fn encode(self) -> [f64; Self::FIELDS] {
        let Self { local, reduced, recomputed } = self;
        [
            local.weighted,
            local.squares,
            reduced.weighted,
            reduced.squares,
            recomputed.weighted,
            recomputed.squares,
        ]
    }

    pub(super) fn decode(fields: &[f64]) -> Self {
        let sums = |at: usize| ElementSums { weighted: fields[at], squares: fields[at + 1] };
        Self { local: sums(0), reduced: sums(2), recomputed: sums(4) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(kernels: &str, shard: usize) -> Member {
        Member { kernels: kernels.to_owned(), shard }
    }

    fn sums(weighted: f64) -> ElementSums {
        ElementSums { weighted, squares: 1.0 }
    }

    fn replica(weighted: f64) -> Option<ReplicaSums> {
        Some([sums(weighted); REPLICA_BUFFERS])
    }

    #[test]
    fn sums_of_a_finding_differ() {
        let squares = ElementSums { weighted: 1.0, squares: 2.0 };
        assert_eq!(differing(sums(1.0), sums(1.0)), None);
        let found = differing(sums(1.0), sums(3.0));
        assert_eq!(found, Some(Differing { found: 1.0, expected: 3.0 }));
        let found = differing(squares, sums(1.0));
        assert_eq!(found, Some(Differing { found: 2.0, expected: 1.0 }));
    }

    #[test]
    fn every_rank_of_a_class_is_checked_by_every_other_one_in_turn() {
        let members = ["a", "b", "a", "a", "c", "a"].map(|kernels| member(kernels, 0));
        let partners = Partners::new(&members, true, 1);
        for rank in [0, 2, 3, 5] {
            let mut checked: Vec<_> =
                (0..3).map(|shift| partners.checked_by(rank, shift)).collect();
            checked.sort_unstable();
            let others: Vec<_> = [0, 2, 3, 5].into_iter().filter(|&other| other != rank).collect();
            assert_eq!(checked, others);
        }
        for shift in 0..5 {
            let mut checked: Vec<_> = (0..6).map(|rank| partners.checked_by(rank, shift)).collect();
            checked.sort_unstable();
            assert_eq!(checked, [0, 1, 2, 3, 4, 5], "each by one rank");
        }
        assert_eq!([1, 4].map(|rank| partners.checked_by(rank, 7)), [1, 4], "alone");
        let text = partners.unchecked_gradients().unwrap();
        assert!(text.starts_with("gradients of ranks 1, 4: "), "{text}");
        assert_eq!(
            Partners::new(&[member("a", 0), member("a", 0)], true, 1).unchecked_gradients(),
            None
        );
    }

    #[test]
    fn the_minority_of_replicas_is_to_blame() {
        let partners = Partners::new(&[0, 1, 0, 1, 0, 1].map(|shard| member("a", shard)), false, 1);
        let shards = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0].map(replica);
        assert_eq!(partners.differing_replica(|rank| shards[rank]), None, "shards differ");
        for buffer in 0..REPLICA_BUFFERS {
            let mut other = shards;
            other[3].as_mut().unwrap()[buffer].weighted = 2.5;
            let blame = partners.differing_replica(|rank| other[rank]).unwrap();
            assert_eq!(blame.rank, Some(3));
            assert_eq!(blame.sums, Differing { found: 2.5, expected: 2.0 });
            assert_eq!(blame.votes, Opinions { expected: 2, other: 1 });
        }
        let two = Partners::new(&[member("a", 0), member("a", 0)], false, 1);
        assert_eq!(two.differing_replica(|rank| replica(rank as f64)).unwrap().rank, None);
        assert_eq!(two.differing_replica(|_| replica(1.0)), None);
    }

    #[test]
    fn kernels_separate_replicas_that_update_by_themselves() {
        let members = [member("a", 0), member("b", 0)];
        let differing = |rank: usize| replica(rank as f64);
        assert_eq!(Partners::new(&members, true, 1).differing_replica(differing), None);
        assert!(Partners::new(&members, false, 1).differing_replica(differing).is_some());
    }

    #[test]
    fn rounding_fits_and_more_does_not() {
        let squares = 4.0e6;
        let of = |weighted| ElementSums { weighted, squares };
        let is_unbalanced = |reductions, found| {
            let partners = Partners::new(&[member("a", 0), member("a", 0)], true, reductions);
            let half = |sums: ElementSums| ElementSums {
                weighted: sums.weighted / 2.0,
                squares: sums.squares / 2.0,
            };
            let rank = BucketSums {
                local: half(of(3.0)),
                reduced: half(of(found)),
                ..BucketSums::default()
            };
            partners.imbalance_of([rank; 2].into_iter()).is_some()
        };
        let deviation = ROUNDING * f64::sqrt(2.0 * 2.0 * squares);
        assert!(!is_unbalanced(1, 3.0 + 9.9 * deviation));
        assert!(is_unbalanced(1, 3.0 - 10.1 * deviation));
        assert!(is_unbalanced(1, f64::NAN));
        let deviation = ROUNDING * f64::sqrt((2.0 * 2.0 + 63.0) * squares);
        assert!(!is_unbalanced(64, 3.0 + 9.9 * deviation));
        assert!(is_unbalanced(64, 3.0 + 10.1 * deviation));
    }
}
