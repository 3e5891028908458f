//! Optimizer: learning rate, clipping and the parameters of AdamW at each step.
//! [`State`](super::State) applies them.

use models::Layout;
use models::ops::adamw::AdamW;
use models::workload::{OptimizerConfig, ScheduleConfig};

use super::schedule::learning_rate;

/// AdamW with decoupled weight decay and a learning rate schedule.
#[derive(Debug)]
pub(crate) struct Optimizer {
    config: OptimizerConfig,
    schedule: ScheduleConfig,
    /// Weight decay by tensor: true where it applies.
    decays: Vec<bool>,
}

/// Update of one step.
#[derive(Debug)]
pub(crate) struct Update<'optimizer> {
    decays: &'optimizer [bool],
    with_decay: AdamW,
    without_decay: AdamW,
}

impl Optimizer {
    /// Creates an optimizer for the tensors of a layout.
    pub(crate) fn new(config: OptimizerConfig, schedule: ScheduleConfig, layout: &Layout) -> Self {
        let decays = layout.tensors().iter().map(|tensor| tensor.decay).collect();
        Self { config, schedule, decays }
    }

    /// Returns the learning rate after `step` completed steps.
    pub(crate) fn learning_rate(&self, step: u64) -> f64 {
        learning_rate(&self.schedule, step)
    }

    /// Returns the update after `step` completed steps; gradients with a norm above the maximum are
    /// scaled down to it.
    pub(crate) fn update(&self, step: u64, gradient_norm: f64) -> Update<'_> {
        let config = &self.config;
        let max = config.gradient_norm_max;
        let updates = (step + 1) as i32;
        let without_decay = AdamW {
            learning_rate: self.learning_rate(step),
            beta1: config.beta1,
            beta2: config.beta2,
            epsilon: config.epsilon,
            weight_decay: 0.0,
            correction1: 1.0 - config.beta1.powi(updates),
            correction2: 1.0 - config.beta2.powi(updates),
            gradient_scale: if max > 0.0 && gradient_norm > max {
                max / gradient_norm
            } else {
                1.0
            },
        };
        let with_decay = AdamW { weight_decay: config.weight_decay, ..without_decay };
        Update { decays: &self.decays, with_decay, without_decay }
    }
}

impl Update<'_> {
    /// Returns the parameters where weights decay.
    pub(crate) fn with_decay(&self) -> &AdamW {
        &self.with_decay
    }

    /// Returns the parameters for a tensor.
    pub(crate) fn of(&self, tensor: usize) -> &AdamW {
        if self.decays[tensor] { &self.with_decay } else { &self.without_decay }
    }
}
