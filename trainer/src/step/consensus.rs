//! Consensus of a step: one small all-gather of losses, the gradient norm, non-finite values, and
//! requests. All ranks decide from the same votes, so they decide alike.

use models::Layout;
use models::ops::update_norm::UpdateSquares;

use crate::failure::{Failure, Outcome};
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
    /// First tensor whose local gradient has a non-finite value.
    pub(crate) local_non_finite: Option<usize>,
    /// Sum of the squares of this rank's parts of the reduced gradients.
    pub(crate) squares: f64,
    /// First tensor in these parts that has a non-finite value: the sum over ranks overflowed.
    pub(crate) reduced_non_finite: Option<usize>,
    /// Squares of this rank's parts of the weights that this step began with, and of the update
    /// that produced them; zeros in steps in which they are not computed.
    pub(crate) update: UpdateSquares,
    pub(crate) requests: Requests,
    /// Times of this rank in the last step whose time is known.
    pub(crate) times: StepTimes,
    /// Alarming state of its GPU.
    pub(crate) alert: Alert,
}

/// Number of fields before those of the times.
const TIMES: usize = 12;

/// Number of fields before those of the alert.
const ALERT: usize = TIMES + StepTimes::FIELDS;

const FIELDS: usize = ALERT + ALERT_FIELDS;

impl Vote {
    fn encode(&self) -> [f64; FIELDS] {
        let number = |tensor: Option<usize>| tensor.map_or(-1.0, |tensor| tensor as f64);
        let flag = |is_requested: bool| f64::from(u8::from(is_requested));
        let mut fields = [0.0; FIELDS];
        fields[..TIMES].copy_from_slice(&[
            self.loss_sum,
            number(self.local_non_finite),
            self.squares,
            number(self.reduced_non_finite),
            f64::from(self.requests.save.0),
            flag(self.requests.stop),
            flag(self.requests.save_is_ready),
            f64::from(Trigger::code(self.requests.trigger)),
            flag(self.requests.is_measured),
            self.update.weights,
            self.update.update,
            f64::from(self.requests.failing_copies.0),
        ]);
        fields[TIMES..ALERT].copy_from_slice(&self.times.encode());
        fields[ALERT..].copy_from_slice(&self.alert.encode());
        fields
    }

    fn decode(fields: &[f64]) -> Self {
        let tensor = |field: f64| (field >= 0.0).then_some(field as usize);
        Self {
            loss_sum: fields[0],
            local_non_finite: tensor(fields[1]),
            squares: fields[2],
            reduced_non_finite: tensor(fields[3]),
            requests: Requests {
                save: TierSet(fields[4] as u8),
                stop: fields[5] > 0.0,
                save_is_ready: fields[6] > 0.0,
                trigger: Trigger::of_code(fields[7] as u8),
                is_measured: fields[8] > 0.0,
                failing_copies: TierSet(fields[11] as u8),
            },
            update: UpdateSquares { weights: fields[9], update: fields[10] },
            times: StepTimes::decode(&fields[TIMES..ALERT]),
            alert: Alert::decode(&fields[ALERT..]),
        }
    }
}

/// First rank with a non-finite value.
#[derive(Debug, PartialEq, Eq)]
struct NonFinite {
    rank: usize,
    /// Number of other ranks with one. They share the cause: a sharded weight, or training itself.
    others: usize,
    /// Tensor, if the value is a gradient; `None` if it is the loss.
    tensor: Option<usize>,
}

/// Votes of all ranks. The buffer is reused, so that a step allocates nothing.
#[derive(Debug)]
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

    /// Fails if a loss or local gradient of any rank is not finite, or if a reduced gradient is
    /// not, because the sum over ranks overflowed. A rank is to blame only if it is the only one.
    pub(crate) fn require_finite(&self, layout: &Layout, step: u64) -> Outcome<()> {
        let name = |tensor: usize| layout.tensors()[tensor].name.as_str();
        if let Some(NonFinite { rank, others, tensor }) = self.local_non_finite() {
            let what =
                tensor.map_or("loss".to_owned(), |tensor| format!("gradient of {}", name(tensor)));
            return Err(match others {
                0 => not_finite(step, &format!("rank {rank}: the {what}")).caused_by(rank),
                _ => {
                    let others = count(others, "other rank");
                    not_finite(step, &format!("rank {rank} and {others}: the {what}"))
                }
            });
        }
        if self.squares().is_finite() {
            return Ok(());
        }
        let tensor = self.reduced_non_finite().map_or("all tensors", name);
        Err(not_finite(step, &format!("all ranks: the reduced gradient of {tensor}")))
    }

    fn all(&self) -> impl Iterator<Item = Vote> + '_ {
        self.fields.chunks(FIELDS).map(Vote::decode)
    }

    /// Returns the sum of all losses, in the order of ranks.
    pub(crate) fn loss_sum(&self) -> f64 {
        self.all().map(|vote| vote.loss_sum).sum()
    }

    /// Finds ranks whose loss or local gradient is not finite.
    fn local_non_finite(&self) -> Option<NonFinite> {
        let is_non_finite = |(_, vote): &(usize, Vote)| {
            !vote.loss_sum.is_finite() || vote.local_non_finite.is_some()
        };
        let mut found = self.all().enumerate().filter(is_non_finite);
        let (rank, vote) = found.next()?;
        Some(NonFinite { rank, others: found.count(), tensor: vote.local_non_finite })
    }

    /// Returns the square of the global gradient norm: the sum of all squares, in the order of
    /// ranks.
    pub(crate) fn squares(&self) -> f64 {
        self.all().map(|vote| vote.squares).sum()
    }

    /// Returns the squares of all weights and of their last update, summed in the order of ranks.
    pub(crate) fn update_squares(&self) -> UpdateSquares {
        UpdateSquares {
            weights: self.all().map(|vote| vote.update.weights).sum(),
            update: self.all().map(|vote| vote.update.update).sum(),
        }
    }

    /// Returns the first tensor whose reduced gradient is not finite.
    fn reduced_non_finite(&self) -> Option<usize> {
        self.all().filter_map(|vote| vote.reduced_non_finite).min()
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
        local_non_finite: None,
        squares: 0.25,
        reduced_non_finite: None,
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

    fn votes(votes: &[Vote]) -> Votes {
        Votes { fields: votes.iter().flat_map(Vote::encode).collect() }
    }

    #[test]
    fn losses_are_added_and_a_non_finite_gradient_is_located() {
        let found = votes(&[FINITE, Vote { loss_sum: 2.0, local_non_finite: Some(7), ..FINITE }]);
        assert_eq!((found.loss_sum(), found.squares()), (3.0, 0.5));
        assert_eq!(found.update_squares(), UpdateSquares { weights: 8.0, update: 1.0 });
        assert_eq!(
            found.local_non_finite(),
            Some(NonFinite { rank: 1, others: 0, tensor: Some(7) })
        );
        assert_eq!((found.reduced_non_finite(), found.requests()), (None, FINITE.requests));
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
    fn a_non_finite_loss_is_located() {
        let save = TierSet(0b10);
        let trigger = Some(Trigger::Signal);
        let stop = true;
        let failing_copies = TierSet(0b100);
        let requests = Requests {
            save,
            trigger,
            stop,
            is_measured: true,
            save_is_ready: false,
            failing_copies,
        };
        let found = votes(&[Vote { loss_sum: f64::NAN, requests, ..FINITE }]);
        let expected = NonFinite { rank: 0, others: 0, tensor: None };
        assert_eq!(found.local_non_finite(), Some(expected));
        assert_eq!(found.requests(), requests);
        let shared = Vote { local_non_finite: Some(7), ..FINITE };
        let found = votes(&[FINITE, shared, shared]);
        let expected = NonFinite { rank: 1, others: 1, tensor: Some(7) };
        assert_eq!(found.local_non_finite(), Some(expected));
    }

    #[test]
    fn the_first_tensor_that_overflowed_is_found() {
        let bad =
            |tensor| Vote { squares: f64::INFINITY, reduced_non_finite: Some(tensor), ..FINITE };
        let found = votes(&[FINITE, bad(5), bad(3)]);
        assert_eq!((found.local_non_finite(), found.reduced_non_finite()), (None, Some(3)));
        assert!(!found.squares().is_finite());
    }
}
