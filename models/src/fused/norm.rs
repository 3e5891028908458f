//! A family's norm, and what it saves of each row for backward.

use super::parameter_ranges::{Affine, AffineMut};
use crate::ModelConfig;
use crate::config::Family;
use crate::ops::{Element, RowSums, layer_norm, rms_norm};

/// LayerNorm with bias, or RMSNorm without.
#[derive(Debug, Clone, Copy)]
pub(super) enum Norm {
    /// Saves mean and 1 / standard deviation.
    Layer,
    /// Saves 1 / root mean square.
    RootMeanSquare {
        /// Added to the mean square.
        epsilon: f64,
    },
}

/// What backward needs of a norm's forward.
#[derive(Debug, Clone, Copy)]
pub(super) struct NormActivations<'a, E: Element> {
    /// (N, C).
    pub(super) input: &'a [E],
    /// Statistics (N, 1 or 2).
    pub(super) stats: &'a [E::Wide],
}

impl Norm {
    pub(super) fn new(config: &ModelConfig) -> Self {
        match config.family {
            Family::Gpt => Self::Layer,
            Family::Llama(llama) => Self::RootMeanSquare { epsilon: llama.norm_epsilon },
        }
    }

    /// Statistics that it saves of each row.
    pub(super) fn stats_per_row(self) -> usize {
        match self {
            Self::Layer => 2,
            Self::RootMeanSquare { .. } => 1,
        }
    }

    /// Vectors of parameters: weight, and in LayerNorm bias.
    pub(super) fn parameters(self) -> usize {
        match self {
            Self::Layer => 2,
            Self::RootMeanSquare { .. } => 1,
        }
    }

    /// Writes `y` (N, C) and the statistics of each row.
    pub(super) fn forward<E: Element>(
        self,
        y: &mut [E],
        stats: &mut [E::Wide],
        x: &[E],
        parameters: Affine<'_, E>,
    ) {
        match self {
            Self::Layer => {
                let stats = stats.as_chunks_mut().0;
                layer_norm::forward(y, stats, x, with_bias(parameters));
            }
            Self::RootMeanSquare { epsilon } => {
                rms_norm::forward(y, stats, x, parameters.weight, epsilon);
            }
        }
    }

    /// Recomputes `y` (N, C) from saved statistics.
    pub(super) fn recompute<E: Element>(
        self,
        y: &mut [E],
        saved: NormActivations<'_, E>,
        parameters: Affine<'_, E>,
    ) {
        let NormActivations { input, stats } = saved;
        match self {
            Self::Layer => layer_norm::apply(y, stats.as_chunks().0, input, with_bias(parameters)),
            Self::RootMeanSquare { .. } => rms_norm::apply(y, stats, input, parameters.weight),
        }
    }

    /// Adds to `dx` (N, C) and to the parameters' gradients.
    pub(super) fn backward<E: Element>(
        self,
        dx: &mut [E],
        gradients: AffineMut<'_, E::Wide>,
        dy: &[E],
        saved: NormActivations<'_, E>,
        weight: &[E],
        row_sums: &mut RowSums<E::Wide>,
    ) {
        let AffineMut { weight: dweight, bias: dbias } = gradients;
        let NormActivations { input, stats } = saved;
        match self {
            Self::Layer => {
                let bias = dbias.unwrap_or_else(|| unreachable!("LayerNorm has a bias"));
                let gradients = layer_norm::Gradients { weight: dweight, bias };
                let saved = (stats.as_chunks().0, input);
                layer_norm::backward(dx, gradients, dy, saved, weight, row_sums);
            }
            Self::RootMeanSquare { .. } => {
                rms_norm::backward(dx, dweight, dy, (stats, input), weight, row_sums);
            }
        }
    }
}

fn with_bias<T>(parameters: Affine<'_, T>) -> layer_norm::Parameters<'_, T> {
    let bias = parameters.bias.unwrap_or_else(|| unreachable!("LayerNorm has a bias"));
    layer_norm::Parameters { weight: parameters.weight, bias }
}
