//! The interface between engines and the trainer: one forward and backward over flat buffers.

use std::ops::Range;

use device::ViewMut;
use half::bf16;

use crate::tuning::ProductTuner;
use crate::weights::Weights;
use crate::{Error, Layout, Meter, Sums};

impl<'a> From<&'a [f32]> for Weights<'a> {
    fn from(weights: &'a [f32]) -> Self {
        Self::F32(weights.into())
    }
}

impl<'a> From<&'a [bf16]> for Weights<'a> {
    fn from(weights: &'a [bf16]) -> Self {
        Self::Bf16(weights.into())
    }
}

/// Source of an engine's weights, segment by segment: some may still be in flight.
///
/// In forward an engine requests the segments of [`Layout::segments`] from the last to the first,
/// each when it needs it, and all of them before it declares a gradient complete. The fused engine
/// requests them in the order of [`Layout::uses`], again in backward; a source may rely on that.
pub trait WeightSource {
    /// Length of the flat weights in elements, padding included.
    fn flat_len(&self) -> usize;

    /// The weights of one segment, given by its range in the flat weights; waits until they have
    /// arrived.
    ///
    /// # Errors
    /// [`Error::Exchange`] when they do not arrive.
    fn segment(&mut self, range: &Range<usize>) -> Result<Weights<'_>, Error>;
}

impl WeightSource for Weights<'_> {
    fn flat_len(&self) -> usize {
        self.len()
    }

    fn segment(&mut self, range: &Range<usize>) -> Result<Weights<'_>, Error> {
        Ok(match self {
            Self::F32(weights) => Weights::F32(weights.slice(range.clone())),
            Self::Bf16(weights) => Weights::Bf16(weights.slice(range.clone())),
        })
    }
}

/// One micro-batch of token ids.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// (B, T) token ids, row-major.
    pub inputs: &'a [u32],
    /// (B, T) ids of the next tokens.
    pub targets: &'a [u32],
}

/// Pass that the engine computes; the trainer's phase clock follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Activations and loss.
    Forward,
    /// Gradients.
    Backward,
}

/// Sink of an engine's gradients, and of reports that they are complete.
///
/// Segments are those of [`Layout::segments`], and become complete in that order.
pub trait StepSink {
    /// The gradient of a segment, to be written or added to.
    ///
    /// # Errors
    /// [`Error::Exchange`] when there is no memory for it, because earlier gradients are not handed
    /// over.
    ///
    /// # Panics
    /// Panics if the segment was declared complete before.
    fn gradient(&mut self, segment: usize) -> Result<ViewMut<'_, f32>, Error>;
    /// The gradient of this segment is final for this micro-batch.
    ///
    /// # Errors
    /// [`Error::Exchange`] when it cannot be handed over.
    fn complete(&mut self, segment: usize) -> Result<(), Error>;
    /// The engine enters this pass.
    fn enter(&mut self, pass: Pass);
}

/// A forward and backward implementation of one model at one micro-batch shape (B, T).
pub trait Model: Send + std::fmt::Debug {
    /// The layout of the weights and gradients it works on.
    fn layout(&self) -> &Layout;

    /// Operations that are computed in another way than usual, because a library refused them: a
    /// sentence each, for the record.
    fn fallbacks(&self) -> Vec<String> {
        Vec::new()
    }

    /// The tuner of this engine's products, where their algorithms can be chosen by measurement.
    fn tuner(&mut self) -> Option<&mut dyn ProductTuner> {
        None
    }

    /// The meter of this engine's ops, where it has one.
    fn meter(&mut self) -> Option<&mut Meter> {
        None
    }

    /// Adds the sum over all B x T targets of the cross-entropy in nats to `loss`, one element on
    /// the engine's device, and hands the gradient of `scale` times that sum to the sink: it
    /// replaces every tensor's ([`Sums::Write`], in the first micro-batch of a step, regardless of
    /// old values) or is added to it. Padding between tensors stays as it is, or becomes zero.
    ///
    /// On a device other than the host the work is only started when this returns, in the order of
    /// the device's stream.
    ///
    /// # Errors
    /// Fails if weights do not arrive or the engine's library fails; gradients are then
    /// unspecified.
    fn train(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
        scale: f32,
        sums: Sums,
        loss: ViewMut<'_, f64>,
        sink: &mut dyn StepSink,
    ) -> Result<(), Error>;

    /// [`train`](Self::train) of an engine in the host's memory, which returns the loss.
    ///
    /// # Errors
    /// Those of [`train`](Self::train).
    fn train_on_host(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
        scale: f32,
        sums: Sums,
        sink: &mut dyn StepSink,
    ) -> Result<f64, Error> {
        let mut loss = [0.0];
        self.train(weights, batch, scale, sums, loss.as_mut_slice().into(), sink)?;
        Ok(loss[0])
    }

    /// Returns the sum over all B x T targets of the cross-entropy in nats, without gradients.
    /// Waits for the device.
    ///
    /// # Errors
    /// Fails if weights do not arrive or the engine's library fails.
    fn evaluate(&mut self, weights: &mut dyn WeightSource, batch: Batch<'_>) -> Result<f64, Error>;
}
