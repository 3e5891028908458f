//! A family's norm, and what it keeps of each row for backward.

use crate::ModelConfig;
use crate::config::Family;
use crate::ops::matmul::Sums;
use crate::ops::{Element, Float, RowSums, layer_norm, rms_norm};

/// LayerNorm with bias, or RMSNorm without.
#[derive(Debug, Clone, Copy)]
pub(super) enum Norm {
    /// Keeps mean and 1 / standard deviation.
    Layer,
    /// Keeps 1 / root mean square.
    RootMeanSquare {
        /// Added to the mean square.
        epsilon: f64,
    },
}

/// Weight (C) and, in LayerNorm, bias (C).
pub(super) type Parameters<'a, T> = (&'a [T], Option<&'a [T]>);

/// Where the gradients of both go.
pub(super) type Gradients<'a, T> = (&'a mut [T], Option<&'a mut [T]>);

impl Norm {
    pub(super) fn new(config: &ModelConfig) -> Self {
        match config.family {
            Family::Gpt => Self::Layer,
            Family::Llama(llama) => Self::RootMeanSquare { epsilon: llama.norm_epsilon },
        }
    }

    /// Numbers that it keeps of each row.
    pub(super) fn numbers(self) -> usize {
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

    /// Writes `y` (N, C) and, per row, what backward needs to `stats`.
    pub(super) fn forward<E: Element>(
        self,
        y: &mut [E],
        stats: &mut [E::Wide],
        x: &[E],
        parameters: Parameters<'_, E>,
    ) {
        match self {
            Self::Layer => {
                let stats = stats.as_chunks_mut().0;
                layer_norm::forward(y, stats, x, layer(parameters));
            }
            Self::RootMeanSquare { epsilon } => {
                rms_norm::forward(y, stats, x, parameters.0, epsilon);
            }
        }
    }

    /// Writes `y` (N, C) again.
    pub(super) fn apply<E: Element>(
        self,
        y: &mut [E],
        stats: &[E::Wide],
        x: &[E],
        parameters: Parameters<'_, E>,
    ) {
        match self {
            Self::Layer => layer_norm::apply(y, stats.as_chunks().0, x, layer(parameters)),
            Self::RootMeanSquare { .. } => rms_norm::apply(y, stats, x, parameters.0),
        }
    }

    /// Adds to `dx` (N, C), and writes or adds to the parameters' gradients.
    pub(super) fn backward<E: Element>(
        self,
        dx: &mut [E],
        (gradients, sums): (Gradients<'_, E::Wide>, Sums),
        dy: &[E],
        (stats, x): (&[E::Wide], &[E]),
        weight: &[E],
        row_sums: &mut RowSums<E::Wide>,
    ) {
        let (dweight, dbias) = match sums {
            Sums::Write => cleared(gradients),
            Sums::Add => gradients,
        };
        match self {
            Self::Layer => {
                let bias = dbias.unwrap_or_else(|| unreachable!("LayerNorm has a bias"));
                let gradients = layer_norm::Gradients { weight: dweight, bias };
                let saw = (stats.as_chunks().0, x);
                layer_norm::backward(dx, gradients, dy, saw, weight, row_sums);
            }
            Self::RootMeanSquare { .. } => {
                rms_norm::backward(dx, dweight, dy, (stats, x), weight, row_sums);
            }
        }
    }
}

/// Vectors of C elements each: clearing them is not worth an op that writes.
fn cleared<T: Float>((weight, mut bias): Gradients<'_, T>) -> Gradients<'_, T> {
    weight.fill(T::ZERO);
    if let Some(bias) = &mut bias {
        bias.fill(T::ZERO);
    }
    (weight, bias)
}

fn layer<T>((weight, bias): Parameters<'_, T>) -> layer_norm::Parameters<'_, T> {
    let bias = bias.unwrap_or_else(|| unreachable!("LayerNorm has a bias"));
    layer_norm::Parameters { weight, bias }
}
