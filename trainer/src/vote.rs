//! What ranks tell each other once a step: losses, bad news and wishes, in one small all-gather.

use std::time::Instant;

use collectives::Collective;

/// One rank's message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Vote {
    /// Sum of the local cross-entropy in nats.
    pub(crate) loss_sum: f64,
    /// First tensor whose local gradient is not finite.
    pub(crate) non_finite: Option<usize>,
    /// A save is due, or asked for.
    pub(crate) save: bool,
    /// The run was asked to stop.
    pub(crate) stop: bool,
}

const FIELDS: usize = 4;

impl Vote {
    fn encode(&self) -> [f64; FIELDS] {
        [
            self.loss_sum,
            self.non_finite.map_or(-1.0, |tensor| tensor as f64),
            f64::from(u8::from(self.save)),
            f64::from(u8::from(self.stop)),
        ]
    }

    fn decode(fields: &[f64]) -> Self {
        Self {
            loss_sum: fields[0],
            non_finite: (fields[1] >= 0.0).then_some(fields[1] as usize),
            save: fields[2] > 0.0,
            stop: fields[3] > 0.0,
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

    /// Whether any rank wants a save.
    pub(crate) fn save(&self) -> bool {
        self.all().any(|vote| vote.save)
    }

    /// Whether any rank was asked to stop.
    pub(crate) fn stop(&self) -> bool {
        self.all().any(|vote| vote.stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_rank_and_the_tensor() {
        let vote = |loss_sum, non_finite| Vote { loss_sum, non_finite, save: false, stop: false };
        let fields = [vote(1.0, None), vote(2.0, Some(7))].iter().flat_map(Vote::encode).collect();
        let votes = Votes { fields };
        assert_eq!(votes.loss_sum(), 3.0);
        assert_eq!(votes.non_finite(), Some((1, Some(7))));
        assert!(!votes.save() && !votes.stop());
    }

    #[test]
    fn a_loss_that_is_not_finite_counts_without_a_tensor() {
        let vote = Vote { loss_sum: f64::NAN, non_finite: None, save: true, stop: true };
        let votes = Votes { fields: vote.encode().to_vec() };
        assert_eq!(votes.non_finite(), Some((0, None)));
        assert!(votes.save() && votes.stop());
    }
}
