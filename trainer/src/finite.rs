//! What is not finite ends the run before the update, and is named.

use models::Layout;
use models::ops::norm::first_non_finite;

use crate::failure::{ExitCode, Failure, Outcome};
use crate::shard::Place;
use crate::step::Trainer;

impl Trainer<'_> {
    /// Whether the reduced gradients are this rank's own: then what is not finite in them is its.
    pub(crate) fn is_alone(&self) -> bool {
        self.collective.world() == 1
    }

    /// Fails when a loss or local gradient of any rank is not finite, or a reduced gradient, which
    /// only the sum over ranks makes infinite.
    pub(crate) fn check_finite(&self) -> Outcome<()> {
        let name = |index: usize| &self.layout.tensors()[index].name;
        if let Some((rank, tensor)) = self.votes.non_finite() {
            let what =
                tensor.map_or("loss".to_owned(), |index| format!("gradient of {}", name(index)));
            return Err(self.numerical(Some(rank), &format!("rank {rank}: the {what}")));
        }
        if self.votes.squares().is_finite() {
            return Ok(());
        }
        let what = self.votes.overflow().map_or("all tensors", |index| name(index));
        Err(self.numerical(None, &format!("all ranks: the reduced gradient of {what}")))
    }

    /// The first tensor with a reduced gradient in this rank's parts that is not finite, given the
    /// sum of their squares.
    pub(crate) fn overflow(&self, squares: f64) -> Option<usize> {
        let mut parts = self.shard.places.iter().filter(|_| !squares.is_finite());
        parts.find_map(|Place { part, .. }| {
            let bad = first_non_finite(&self.gradients[part.clone()])?;
            tensor_at(&self.layout, part.start + bad)
        })
    }

    fn numerical(&self, rank: Option<usize>, what: &str) -> Failure {
        let step = self.state.progress.step + 1;
        let error = anyhow::anyhow!("step {step}, {what} is not finite; stopped before the update");
        Failure { rank, ..Failure::new(ExitCode::Numerical, error).at_step(step) }
    }
}

/// The tensor that holds this element of the flat buffer.
pub(crate) fn tensor_at(layout: &Layout, element: usize) -> Option<usize> {
    layout.tensors().iter().position(|tensor| tensor.range.contains(&element))
}
