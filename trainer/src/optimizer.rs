//! The optimizer over the flat buffers: global norm, clipping and AdamW.

use models::Layout;
use models::Meter;
use models::meter::{Kind, Role};
use models::ops::adamw::{self, AdamW};
use models::ops::{norm, work};
use models::workload::{OptimizerConfig, ScheduleConfig};
use std::ops::Range;

use crate::state::State;

/// AdamW with decoupled decay, and the runs of the buffer it decays.
#[derive(Debug)]
pub(crate) struct Optimizer {
    config: OptimizerConfig,
    pub(crate) schedule: ScheduleConfig,
    /// Place and decay of every tensor.
    tensors: Vec<(Range<usize>, bool)>,
    pub(crate) meter: Meter,
}

impl Optimizer {
    /// For the tensors of a layout.
    pub(crate) fn new(config: OptimizerConfig, schedule: ScheduleConfig, layout: &Layout) -> Self {
        let tensors = layout.tensors().iter().map(|t| (t.range.clone(), t.decay)).collect();
        Self { config, schedule, tensors, meter: Meter::default() }
    }

    /// L2 norm of all gradients. Padding is zero and does not count.
    pub(crate) fn norm(&mut self, gradients: &[f32]) -> f64 {
        self.meter.time(
            (Role::GradientNorm, Kind::Whole),
            || work::gradient_norm(gradients.len()),
            || norm::sum_of_squares(gradients).sqrt(),
        )
    }

    /// One update; gradients beyond the largest norm are scaled down to it.
    pub(crate) fn update(
        &mut self,
        state: &mut State,
        gradients: &[f32],
        gradient_norm: f64,
        rate: f64,
    ) {
        let Self { config, tensors, meter, .. } = self;
        let tensors = &*tensors;
        let max = config.gradient_norm_max;
        let gradient_scale =
            if max > 0.0 && gradient_norm > max { max / gradient_norm } else { 1.0 };
        let updates = (state.progress.step + 1) as i32;
        let elements = || tensors.iter().map(|(range, _)| range.len()).sum();
        let working_bytes = if state.working.is_empty() { 0 } else { size_of::<half::bf16>() };
        let work = || work::adamw(elements(), working_bytes);
        meter.time((Role::AdamW, Kind::Whole), work, || {
            for (range, decay) in tensors {
                let adamw = AdamW {
                    learning_rate: rate,
                    beta1: config.beta1,
                    beta2: config.beta2,
                    epsilon: config.epsilon,
                    weight_decay: if *decay { config.weight_decay } else { 0.0 },
                    correction1: 1.0 - config.beta1.powi(updates),
                    correction2: 1.0 - config.beta2.powi(updates),
                    gradient_scale,
                };
                let working =
                    (!state.working.is_empty()).then(|| &mut state.working[range.clone()]);
                adamw::step(
                    &mut state.weights[range.clone()],
                    working,
                    &gradients[range.clone()],
                    &mut state.exp_avg[range.clone()],
                    &mut state.exp_avg_sq[range.clone()],
                    &adamw,
                );
            }
        });
    }
}
