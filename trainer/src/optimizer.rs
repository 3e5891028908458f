//! The optimizer: sums of squares for the global norm, clipping and AdamW.

use models::ops::adamw::{self, AdamW};
use models::ops::norm;
use models::workload::{OptimizerConfig, ScheduleConfig};
use models::{Layout, Meter};

use crate::exchange::spread;
use crate::shard::Shard;
use crate::state::{State, Stored};

/// AdamW with decoupled decay.
#[derive(Debug)]
pub(crate) struct Optimizer {
    config: OptimizerConfig,
    pub(crate) schedule: ScheduleConfig,
    /// By tensor: whether it decays.
    decays: Vec<bool>,
    pub(crate) meter: Meter,
}

/// One update of all that a rank holds.
#[derive(Debug)]
pub(crate) struct Update<'optimizer> {
    decays: &'optimizer [bool],
    /// For what does not decay, and for what does.
    adamw: [AdamW; 2],
}

impl Optimizer {
    /// For the tensors of a layout.
    pub(crate) fn new(config: OptimizerConfig, schedule: ScheduleConfig, layout: &Layout) -> Self {
        let decays = layout.tensors().iter().map(|tensor| tensor.decay).collect();
        Self { config, schedule, decays, meter: Meter::default() }
    }

    /// The update after `step` others; gradients beyond the largest norm are scaled down to it.
    pub(crate) fn update(&self, step: u64, gradient_norm: f64, rate: f64) -> Update<'_> {
        let config = &self.config;
        let max = config.gradient_norm_max;
        let gradient_scale =
            if max > 0.0 && gradient_norm > max { max / gradient_norm } else { 1.0 };
        let updates = (step + 1) as i32;
        let adamw = [0.0, config.weight_decay].map(|weight_decay| AdamW {
            learning_rate: rate,
            beta1: config.beta1,
            beta2: config.beta2,
            epsilon: config.epsilon,
            weight_decay,
            correction1: 1.0 - config.beta1.powi(updates),
            correction2: 1.0 - config.beta2.powi(updates),
            gradient_scale,
        });
        Update { decays: &self.decays, adamw }
    }
}

impl Update<'_> {
    /// Updates what this rank holds, bucket by bucket, and sends each to the others.
    pub(crate) fn apply(
        &self,
        shard: &Shard,
        state: &mut State<'_>,
        gradients: &[f32],
    ) -> Result<(), collectives::Error> {
        let State { weights, exp_avg, exp_avg_sq, .. } = state;
        match weights {
            Stored::F32(weights) => spread(shard, weights, |place, bucket| {
                for piece in &place.pieces {
                    adamw::step(
                        &mut bucket[piece.in_bucket(place)],
                        &gradients[piece.flat.clone()],
                        &mut exp_avg[piece.held.clone()],
                        &mut exp_avg_sq[piece.held.clone()],
                        self.of(piece.tensor),
                    );
                }
            }),
            Stored::Bf16 { working, master } => spread(shard, working, |place, bucket| {
                for piece in &place.pieces {
                    adamw::step_and_narrow(
                        &mut master[piece.held.clone()],
                        &mut bucket[piece.in_bucket(place)],
                        &gradients[piece.flat.clone()],
                        &mut exp_avg[piece.held.clone()],
                        &mut exp_avg_sq[piece.held.clone()],
                        self.of(piece.tensor),
                    );
                }
            }),
        }
    }

    fn of(&self, tensor: usize) -> &AdamW {
        &self.adamw[usize::from(self.decays[tensor])]
    }
}

/// Sum of the squares of this rank's parts of the gradients. Padding is zero and does not count.
///
/// The sum over all ranks, in their order, is the square of the global norm, and has the same bits
/// whether or not ranks have more of the gradients than their parts.
pub(crate) fn own_squares(shard: &Shard, gradients: &[f32]) -> f64 {
    let of_part = |range: std::ops::Range<usize>| norm::sum_of_squares(&gradients[range]);
    shard.places.iter().map(|place| of_part(place.part.clone())).sum()
}
