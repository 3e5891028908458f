//! Forward and backward of one rank alone, outside of training.

use device::ViewMut;
use models::rng::{Purpose, Stream};
use models::{Layout, Pass, StepSink};

use super::gradients::Gradients;

/// Token ids that are all as likely: how many differ decides what the embedding moves.
pub(super) fn random_tokens(count: usize, vocabulary: usize) -> Vec<u32> {
    let stream = Stream::new(1, Purpose::Test);
    (0..count as u64).map(|index| stream.below(index, vocabulary as u64) as u32).collect()
}

/// Hands out gradients, and reduces none.
pub(super) struct UnreducedSink<'a, 'world> {
    pub(super) gradients: &'a mut Gradients<'world>,
    pub(super) layout: &'a Layout,
}

impl StepSink for UnreducedSink<'_, '_> {
    fn gradient(&mut self, segment: usize) -> Result<ViewMut<'_, f32>, models::Error> {
        Ok(self.gradients.window(self.layout, segment))
    }

    fn complete(&mut self, _segment: usize) -> Result<(), models::Error> {
        Ok(())
    }

    fn enter(&mut self, _pass: Pass) {}
}
