//! Consensus of a step: one small all-gather of losses, sums over gradients and weights, and
//! requests. All ranks decide from the same votes, so they decide alike.

use models::ops::gradient_norm::ElementSums;
use models::ops::update_norm::UpdateSquares;

use super::scalars::{REPLICA_BUFFERS, ReplicaSums};
use crate::failure::Failure;
use crate::ranks::Ranks;
use crate::tier_set::TierSet;
use record::ExitCode;
use record::Trigger;
use record::slow_ranks::StepTimes;
use record::text::count;
use telemetry::hardware::{ALERT_FIELDS, Alert};

/// Requests of a rank for the end of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Requests {
    /// Tiers that a save must reach, if one is due.
    pub save: TierSet,
    /// Reason why a save is due.
    pub trigger: Option<Trigger>,
    /// Requests a stop.
    pub stop: bool,
    /// Requests the end of the run, as enough is measured with this step; set by rank 0.
    pub is_measured: bool,
    /// True if this rank can advance the save in flight, if any; in a step's outcome, if all can.
    pub save_is_ready: bool,
    /// Tiers to which copies of this rank fail; in a step's outcome, of any rank.
    pub failing_copies: TierSet,
}

/// Message of one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Vote {
    /// Sum of the local cross-entropy in nats.
    pub(crate) loss_sum: f64,
    /// Sums over its own gradients, before they are reduced.
    pub(crate) local: ElementSums,
    /// Sums over its parts of the reduced gradients.
    pub(crate) reduced: ElementSums,
    /// Sums over the gradients of another rank that it has computed again, in steps that check.
    pub(crate) recomputed: Option<ElementSums>,
    /// Sums over the state that it has in common with other ranks, in steps that compare it.
    pub(crate) replica: Option<ReplicaSums>,
    /// Squares of this rank's parts of the weights that this step began with, and of the update
    /// that produced them; zeros in steps in which they are not computed.
    pub(crate) update: UpdateSquares,
    pub(crate) requests: Requests,
    /// Times of this rank in the last step whose time is known.
    pub(crate) times: StepTimes,
    /// Alarming state of its GPU.
    pub(crate) alert: Alert,
}

/// Number of fields before those of replicas.
const REPLICA: usize = 15;

/// Number of fields before those of the times.
const TIMES: usize = REPLICA + 2 * REPLICA_BUFFERS;

/// Number of fields before those of the alert.
const ALERT: usize = TIMES + StepTimes::FIELDS;

const FIELDS: usize = ALERT + ALERT_FIELDS;

/// Sums that were not taken: no square is negative.
const NO_SUMS: ElementSums = ElementSums { weighted: 0.0, squares: -1.0 };

impl Vote {
    fn encode(&self) -> [f64; FIELDS] {
        let recomputed = self.recomputed.unwrap_or(NO_SUMS);
        let flag = |is_requested: bool| f64::from(u8::from(is_requested));
        let mut fields = [0.0; FIELDS];
        fields[..REPLICA].copy_from_slice(&[
            self.loss_sum,
            self.local.weighted,
            self.local.squares,
            self.reduced.weighted,
            self.reduced.squares,
            recomputed.weighted,
            recomputed.squares,
            f64::from(self.requests.save.0),
            flag(self.requests.stop),
            flag(self.requests.save_is_ready),
            f64::from(Trigger::code(self.requests.trigger)),
            flag(self.requests.is_measured),
            self.update.weights,
            self.update.update,
            f64::from(self.requests.failing_copies.0),
        ]);
        let replica = self.replica.unwrap_or([NO_SUMS; REPLICA_BUFFERS]);
        for (fields, sums) in fields[REPLICA..TIMES].chunks_exact_mut(2).zip(replica) {
            fields.copy_from_slice(&[sums.weighted, sums.squares]);
        }
        fields[TIMES..ALERT].copy_from_slice(&self.times.encode());
        fields[ALERT..].copy_from_slice(&self.alert.encode());
        fields
    }

    fn decode(fields: &[f64]) -> Self {
        let sums = |at: usize| ElementSums { weighted: fields[at], squares: fields[at + 1] };
        let optional = |at: usize| Some(sums(at)).filter(|sums| !sums.is_same(NO_SUMS));
        let replica: ReplicaSums = std::array::from_fn(|buffer| sums(REPLICA + 2 * buffer));
        Self {
            loss_sum: fields[0],
            local: sums(1),
            reduced: sums(3),
            recomputed: optional(5),
            replica: Some(replica).filter(|sums| !sums[0].is_same(NO_SUMS)),
            requests: Requests {
                save: TierSet(fields[7] as u8),
                stop: fields[8] > 0.0,
                save_is_ready: fields[9] > 0.0,
                trigger: Trigger::of_code(fields[10] as u8),
                is_measured: fields[11] > 0.0,
                failing_copies: TierSet(fields[14] as u8),
            },
            update: UpdateSquares { weights: fields[12], update: fields[13] },
            times: StepTimes::decode(&fields[TIMES..ALERT]),
            alert: Alert::decode(&fields[ALERT..]),
        }
    }
}

/// Ranks with a loss or gradient that is not finite.
#[derive(Debug, PartialEq, Eq)]
struct NonFinite {
    /// The first of them.
    rank: usize,
    /// Number of other ranks with one. They share the cause: a sharded weight, or training itself.
    others: usize,
    /// True if the value is a gradient of that rank, not only its loss.
    is_gradient: bool,
}

/// Votes of all ranks. The buffer is reused, so that a step allocates nothing.
#[derive(Debug, Clone)]
pub(crate) struct Votes {
    fields: Vec<f64>,
}

impl Votes {
    pub(crate) fn new(world: usize) -> Self {
        Self { fields: vec![0.0; world * FIELDS] }
    }

    /// Sends this rank's vote and receives those of all other ranks.
    pub(crate) fn exchange(
        &mut self,
        ranks: &Ranks<'_>,
        vote: Vote,
    ) -> Result<(), collectives::Error> {
        let start = ranks.rank() * FIELDS;
        self.fields[start..start + FIELDS].copy_from_slice(&vote.encode());
        ranks.collective.all_gather(&mut self.fields, ranks.deadline())?;
        Ok(())
    }

    /// Returns whether all losses and gradients are finite, also after the sum over ranks.
    pub(crate) fn is_finite(&self) -> bool {
        self.local_non_finite().is_none() && self.squares().is_finite()
    }

    /// Returns the failure of a step with values that are not finite, in the first tensor with one
    /// after the reduction, if there is one. A rank is to blame only if it is the only one.
    pub(crate) fn not_finite(&self, tensor: Option<&str>, step: u64) -> Failure {
        let Some(NonFinite { rank, others, is_gradient }) = self.local_non_finite() else {
            let tensor = tensor.unwrap_or("all tensors");
            return not_finite(step, &format!("all ranks: the reduced gradient of {tensor}"));
        };
        let tensor = tensor.filter(|_| is_gradient);
        let what = tensor.map_or("loss".to_owned(), |name| format!("gradient of {name}"));
        match others {
            0 => not_finite(step, &format!("rank {rank}: the {what}")).caused_by(rank),
            _ => {
                let others = count(others, "other rank");
                not_finite(step, &format!("rank {rank} and {others}: the {what}"))
            }
        }
    }

    /// Returns the votes in the order of ranks.
    pub(crate) fn all(&self) -> impl Iterator<Item = Vote> + '_ {
        self.fields.chunks(FIELDS).map(Vote::decode)
    }

    /// Returns the vote of a rank.
    pub(crate) fn of(&self, rank: usize) -> Vote {
        Vote::decode(&self.fields[rank * FIELDS..(rank + 1) * FIELDS])
    }

    /// Returns the sum of all losses, in the order of ranks.
    pub(crate) fn loss_sum(&self) -> f64 {
        self.all().map(|vote| vote.loss_sum).sum()
    }

    /// Finds ranks whose loss or local gradient is not finite.
    fn local_non_finite(&self) -> Option<NonFinite> {
        let is_non_finite = |(_, vote): &(usize, Vote)| {
            !vote.loss_sum.is_finite() || !vote.local.squares.is_finite()
        };
        let mut found = self.all().enumerate().filter(is_non_finite);
        let (rank, vote) = found.next()?;
        let is_gradient = !vote.local.squares.is_finite();
        Some(NonFinite { rank, others: found.count(), is_gradient })
    }

    /// Returns the square of the global gradient norm: the sum of all squares, in the order of
    /// ranks.
    pub(crate) fn squares(&self) -> f64 {
        self.all().map(|vote| vote.reduced.squares).sum()
    }

    /// Returns the squares of all weights and of their last update, summed in the order of ranks.
    pub(crate) fn update_squares(&self) -> UpdateSquares {
        UpdateSquares {
            weights: self.all().map(|vote| vote.update.weights).sum(),
            update: self.all().map(|vote| vote.update.update).sum(),
        }
    }

    /// Returns each rank's own sum of losses.
    pub(crate) fn losses(&self) -> impl Iterator<Item = f64> + '_ {
        self.all().map(|vote| vote.loss_sum)
    }

    /// Returns each rank's times in a step.
    pub(crate) fn times(&self) -> impl Iterator<Item = StepTimes> + '_ {
        self.all().map(|vote| vote.times)
    }

    /// Returns the alarming state of each rank's GPU.
    pub(crate) fn alerts(&self) -> impl Iterator<Item = Alert> + '_ {
        self.all().map(|vote| vote.alert)
    }

    /// Returns the requests of any rank, and whether all are ready.
    pub(crate) fn requests(&self) -> Requests {
        let union = |of: fn(&Requests) -> TierSet| {
            self.all().fold(TierSet::default(), |set, vote| set.union(of(&vote.requests)))
        };
        Requests {
            save_is_ready: self.all().all(|vote| vote.requests.save_is_ready),
            failing_copies: union(|requests| requests.failing_copies),
            save: union(|requests| requests.save),
            trigger: self.all().filter_map(|vote| vote.requests.trigger).max(),
            stop: self.all().any(|vote| vote.requests.stop),
            is_measured: self.all().any(|vote| vote.requests.is_measured),
        }
    }
}

fn not_finite(step: u64, what: &str) -> Failure {
    let error = anyhow::anyhow!("step {step}, {what} is not finite; stopped before the update");
    Failure::new(ExitCode::Numerical, error).at_step(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINITE: Vote = Vote {
        loss_sum: 1.0,
        local: ElementSums { weighted: 0.5, squares: 2.0 },
        reduced: ElementSums { weighted: -0.5, squares: 0.25 },
        recomputed: None,
        replica: None,
        requests: Requests {
            save: TierSet(0),
            trigger: None,
            stop: false,
            is_measured: false,
            save_is_ready: true,
            failing_copies: TierSet(0),
        },
        update: UpdateSquares { weights: 4.0, update: 0.5 },
        times: StepTimes::ZERO,
        alert: Alert::NONE,
    };

    const INFINITE: ElementSums = ElementSums { weighted: f64::NAN, squares: f64::INFINITY };

    fn votes(votes: &[Vote]) -> Votes {
        Votes { fields: votes.iter().flat_map(Vote::encode).collect() }
    }

    #[test]
    fn a_vote_arrives_as_it_was_sent() {
        let sums = |number: f64| ElementSums { weighted: number, squares: number + 0.5 };
        let vote = Vote {
            loss_sum: 9.0,
            local: sums(1.0),
            reduced: sums(2.0),
            recomputed: Some(sums(3.0)),
            replica: Some([4.0, 5.0, 6.0, 7.0].map(sums)),
            requests: Requests {
                save: TierSet(0b10),
                trigger: Some(Trigger::Signal),
                stop: true,
                is_measured: true,
                save_is_ready: false,
                failing_copies: TierSet(0b100),
            },
            update: UpdateSquares { weights: 7.0, update: 8.0 },
            times: StepTimes { exposed_seconds: 0.25, ..StepTimes::ZERO },
            alert: Alert::NONE,
        };
        let sent = [vote, FINITE];
        assert_eq!(votes(&sent).all().collect::<Vec<_>>(), sent);
    }

    #[test]
    fn losses_and_squares_are_added_and_requests_are_joined() {
        let found = votes(&[FINITE, Vote { loss_sum: 2.0, ..FINITE }]);
        assert_eq!((found.loss_sum(), found.squares()), (3.0, 0.5));
        assert_eq!(found.update_squares(), UpdateSquares { weights: 8.0, update: 1.0 });
        assert!(found.is_finite());
        assert_eq!(found.requests(), FINITE.requests);
        let late = Requests { save_is_ready: false, ..FINITE.requests };
        let found = votes(&[FINITE, Vote { requests: late, ..FINITE }]);
        assert!(!found.requests().save_is_ready, "one rank is not");
        let [cadence, health] = [Trigger::Cadence, Trigger::Health]
            .map(|why| Requests { trigger: Some(why), ..FINITE.requests })
            .map(|requests| Vote { requests, ..FINITE });
        let found = votes(&[cadence, health, FINITE]);
        assert_eq!(found.requests().trigger, Some(Trigger::Health));
    }

    #[test]
    fn a_value_that_is_not_finite_is_located() {
        let text = |of: &[Vote], tensor| {
            let found = votes(of);
            assert!(!found.is_finite());
            let failure = found.not_finite(tensor, 3);
            (failure.rank, failure.to_string())
        };
        let bad = Vote { local: INFINITE, reduced: INFINITE, ..FINITE };
        let of_loss = Vote { loss_sum: f64::NAN, ..FINITE };
        let overflown = Vote { reduced: INFINITE, ..FINITE };
        let rest = "is not finite; stopped before the update";
        let tensor = Some("wte.weight");
        assert_eq!(
            text(&[FINITE, bad], tensor),
            (Some(1), format!("step 3, rank 1: the gradient of wte.weight {rest}"))
        );
        assert_eq!(text(&[of_loss], None), (Some(0), format!("step 3, rank 0: the loss {rest}")));
        assert_eq!(
            text(&[FINITE, bad, bad], tensor),
            (None, format!("step 3, rank 1 and 1 other rank: the gradient of wte.weight {rest}"))
        );
        assert_eq!(
            text(&[FINITE, overflown], tensor),
            (None, format!("step 3, all ranks: the reduced gradient of wte.weight {rest}"))
        );
    }
}
