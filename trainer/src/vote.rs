//! What ranks tell each other once a step: losses, squares, bad news and wishes, in one small
//! all-gather.

use std::time::Instant;

use collectives::Collective;

use crate::step::Wish;

/// One rank's message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Vote {
    /// Sum of the local cross-entropy in nats.
    pub(crate) loss_sum: f64,
    /// First tensor whose local gradient is not finite.
    pub(crate) non_finite: Option<usize>,
    /// Sum of the squares of this rank's parts of the reduced gradients.
    pub(crate) squares: f64,
    /// First tensor that is not finite in these.
    pub(crate) overflow: Option<usize>,
    /// What this rank wishes for.
    pub(crate) wish: Wish,
}

const FIELDS: usize = 6;

impl Vote {
    fn encode(&self) -> [f64; FIELDS] {
        let number = |tensor: Option<usize>| tensor.map_or(-1.0, |tensor| tensor as f64);
        let flag = |wish: bool| f64::from(u8::from(wish));
        [
            self.loss_sum,
            number(self.non_finite),
            self.squares,
            number(self.overflow),
            flag(self.wish.save),
            flag(self.wish.stop),
        ]
    }

    fn decode(fields: &[f64]) -> Self {
        let tensor = |field: f64| (field >= 0.0).then_some(field as usize);
        Self {
            loss_sum: fields[0],
            non_finite: tensor(fields[1]),
            squares: fields[2],
            overflow: tensor(fields[3]),
            wish: Wish { save: fields[4] > 0.0, stop: fields[5] > 0.0 },
        }
    }
}

/// The buffer in which votes meet; kept, so that a step allocates nothing.
#[derive(Debug)]
pub(crate) struct Votes {
    fields: Vec<f64>,
}

impl Votes {
    pub(crate) fn new(world: usize) -> Self {
        Self { fields: vec![0.0; world * FIELDS] }
    }

    /// Gives this rank's vote and takes everybody's.
    pub(crate) fn gather(
        &mut self,
        collective: &dyn Collective,
        vote: Vote,
        deadline: Instant,
    ) -> Result<(), collectives::Error> {
        let start = collective.rank() * FIELDS;
        self.fields[start..start + FIELDS].copy_from_slice(&vote.encode());
        collective.all_gather(&mut self.fields, deadline)?;
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = Vote> + '_ {
        self.fields.chunks(FIELDS).map(Vote::decode)
    }

    /// Sum of all losses, in the order of ranks.
    pub(crate) fn loss_sum(&self) -> f64 {
        self.all().map(|vote| vote.loss_sum).sum()
    }

    /// First rank whose loss or gradient is not finite, and the tensor if it is a gradient.
    pub(crate) fn non_finite(&self) -> Option<(usize, Option<usize>)> {
        self.all()
            .enumerate()
            .find(|(_, vote)| !vote.loss_sum.is_finite() || vote.non_finite.is_some())
            .map(|(rank, vote)| (rank, vote.non_finite))
    }

    /// The square of the global norm: the sum of all squares, in the order of ranks.
    pub(crate) fn squares(&self) -> f64 {
        self.all().map(|vote| vote.squares).sum()
    }

    /// First tensor whose reduced gradient is not finite.
    pub(crate) fn overflow(&self) -> Option<usize> {
        self.all().filter_map(|vote| vote.overflow).min()
    }

    /// What any rank wishes for.
    pub(crate) fn agreed(&self) -> Wish {
        Wish {
            save: self.all().any(|vote| vote.wish.save),
            stop: self.all().any(|vote| vote.wish.stop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Vote = Vote {
        loss_sum: 1.0,
        non_finite: None,
        squares: 0.25,
        overflow: None,
        wish: Wish { save: false, stop: false },
    };

    fn votes(votes: &[Vote]) -> Votes {
        Votes { fields: votes.iter().flat_map(Vote::encode).collect() }
    }

    #[test]
    fn adds_up_and_names_the_rank_and_the_tensor() {
        let found = votes(&[QUIET, Vote { loss_sum: 2.0, non_finite: Some(7), ..QUIET }]);
        assert_eq!((found.loss_sum(), found.squares()), (3.0, 0.5));
        assert_eq!(found.non_finite(), Some((1, Some(7))));
        assert_eq!((found.overflow(), found.agreed()), (None, Wish::default()));
    }

    #[test]
    fn a_loss_that_is_not_finite_counts_without_a_tensor() {
        let wish = Wish { save: true, stop: true };
        let found = votes(&[Vote { loss_sum: f64::NAN, wish, ..QUIET }]);
        assert_eq!((found.non_finite(), found.agreed()), (Some((0, None)), wish));
    }

    #[test]
    fn the_first_tensor_whose_sum_is_not_finite_is_named() {
        let bad = |tensor| Vote { squares: f64::INFINITY, overflow: Some(tensor), ..QUIET };
        let found = votes(&[QUIET, bad(5), bad(3)]);
        assert_eq!((found.non_finite(), found.overflow()), (None, Some(3)));
        assert!(!found.squares().is_finite());
    }
}
