//! Measurement of the engine's matrix products before training.

use models::tuning::{ProductTuner, TunedProduct};

use super::Trainer;
use super::micro_batches::MicroBatches;
use super::sharded_weights::Reads;
use crate::failure::Outcome;

impl Trainer<'_> {
    /// Returns the tuner of the engine's products, where their algorithms can be chosen.
    pub(crate) fn tuner(&mut self) -> Option<&mut dyn ProductTuner> {
        self.model.tuner()
    }

    /// Times the algorithms of all products in forward and backward of a micro-batch, with the
    /// buffers of training: the first step overwrites what that leaves in them. Not collective, so
    /// nothing is gathered. No weights may be in flight.
    pub(crate) fn measure_products(&mut self) -> Outcome<Vec<TunedProduct>> {
        let Some(tuner) = self.tuner() else { return Ok(Vec::new()) };
        tuner.begin();
        self.accumulate_gradients(MicroBatches::Fixed(Reads::Alone), false)?;
        self.device.synchronize()?;
        Ok(self.tuner().map_or(Vec::new(), |tuner| tuner.measured()))
    }
}
