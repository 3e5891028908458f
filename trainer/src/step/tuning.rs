//! Measurement of the engine's matrix products before training.

use models::tuning::{ProductTuner, TunedProduct};
use models::{Batch, Sums};

use super::Trainer;
use super::sharded_weights::Reads;
use super::unreduced::{UnreducedSink, random_tokens};
use super::waits::Waits;
use crate::config::Config;
use crate::failure::Outcome;

impl Trainer<'_> {
    /// Returns the tuner of the engine's products, where their algorithms can be chosen.
    pub(crate) fn tuner(&mut self) -> Option<&mut dyn ProductTuner> {
        self.model.tuner()
    }

    /// Times the algorithms of all products in forward and backward of a micro-batch, with the
    /// buffers of training: the first step overwrites what that leaves in them. Not collective, so
    /// windows are read as they are: times do not depend on the weights. None may be in flight.
    pub(crate) fn measure_products(&mut self, config: &Config) -> Outcome<Vec<TunedProduct>> {
        let Self { device, model, state, gradients, scalars, dimensions, clock, tallies, .. } =
            self;
        let waits = Waits { tallies, clock, dimensions: *dimensions };
        let Some(tuner) = model.tuner() else { return Ok(Vec::new()) };
        tuner.begin();
        let rows = config.workload.batch.micro_batch().rows();
        let tokens = random_tokens(rows, config.workload.model.vocabulary);
        let batch = Batch { inputs: &tokens, targets: &tokens };
        let (layout, mut weights) = state.arriving(waits);
        weights.begin(Reads::Alone);
        let mut sink = UnreducedSink { gradients, layout };
        let loss = scalars.views_mut().loss;
        let scale = 1.0 / rows as f32;
        model.train(&mut weights, batch, scale, Sums::Write, loss, &mut sink)?;
        device.synchronize()?;
        Ok(model.tuner().map_or(Vec::new(), ProductTuner::measured))
    }
}
