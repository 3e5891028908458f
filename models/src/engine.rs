//! What every engine offers the trainer: one forward and backward over flat buffers.

use crate::{Error, Layout};

/// One micro-batch of token ids.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// (B, T) token ids, row-major.
    pub inputs: &'a [u32],
    /// (B, T) ids of the next tokens.
    pub targets: &'a [u32],
}

/// Which half of the work the engine is in; the trainer's phase clock follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Activations and loss.
    Forward,
    /// Gradients.
    Backward,
}

/// Where an engine puts gradients, and whom it tells that they are complete.
///
/// Segments are those of [`Layout::segments`], and become complete in that order.
pub trait StepSink {
    /// The gradient of a segment, to be accumulated into.
    ///
    /// # Panics
    /// When the segment was declared complete before.
    fn gradient(&mut self, segment: usize) -> &mut [f32];
    /// The gradient of this segment is final for this micro-batch.
    fn complete(&mut self, segment: usize);
    /// The engine goes over to this pass.
    fn enter(&mut self, pass: Pass);
}

/// A forward and backward implementation of one model at one micro-batch shape (B, T).
pub trait Model: Send + std::fmt::Debug {
    /// The layout of the weights and gradients it works on.
    fn layout(&self) -> &Layout;

    /// Returns the sum over all B x T targets of the cross-entropy in nats, and accumulates
    /// the gradient of `scale` times that sum.
    ///
    /// # Errors
    /// When the engine's library fails; the gradients are then unspecified.
    fn train(
        &mut self,
        weights: &[f32],
        batch: Batch<'_>,
        scale: f32,
        sink: &mut dyn StepSink,
    ) -> Result<f64, Error>;

    /// Returns the sum over all B x T targets of the cross-entropy in nats, without gradients.
    ///
    /// # Errors
    /// When the engine's library fails.
    fn evaluate(&mut self, weights: &[f32], batch: Batch<'_>) -> Result<f64, Error>;
}
