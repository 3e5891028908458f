//! The family's norm on the host.

use crate::network::size::Norm;
use crate::ops::matmul::Sums;
use crate::ops::norm::{NormBackward, NormSaved};
use crate::ops::{self, Affine, AffineMut, Element, RowSums, layer_norm, rms_norm};

impl Norm {
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
                rms_norm::forward(y, stats, x, parameters.weight.host(), epsilon);
            }
        }
    }

    /// Writes `y` (N, C) again, from saved statistics.
    pub(super) fn recompute<E: Element>(
        self,
        y: &mut [E],
        saved: NormSaved<'_, E>,
        parameters: Affine<'_, E>,
    ) {
        let input = saved.input.host();
        let stats = saved.stats.host();
        match self {
            Self::Layer => layer_norm::apply(y, stats.as_chunks().0, input, with_bias(parameters)),
            Self::RootMeanSquare { .. } => {
                rms_norm::apply(y, stats, input, parameters.weight.host());
            }
        }
    }

    /// Adds to `dx` (N, C), which is cleared before if it is to be written, and to the parameters'
    /// gradients likewise: vectors of C elements are too small for an op that writes.
    pub(super) fn backward<E: Element>(
        self,
        operands: NormBackward<'_, E>,
        gradients: AffineMut<'_, E::Wide>,
        sums: Sums,
        row_sums: &mut RowSums<E::Wide>,
    ) {
        let NormBackward { dx, accumulate, dy, saved, weight } = operands;
        let dx = dx.host();
        if !accumulate {
            ops::clear(dx);
        }
        let dweight = gradients.weight.host();
        let dbias = gradients.bias.map(|bias| bias.host());
        let dy = dy.host();
        let input = saved.input.host();
        let stats = saved.stats.host();
        let weight = weight.host();
        if sums == Sums::Write {
            dweight.fill(E::Wide::ZERO);
        }
        match self {
            Self::Layer => {
                let bias = dbias.unwrap_or_else(|| unreachable!("LayerNorm has a bias"));
                if sums == Sums::Write {
                    bias.fill(E::Wide::ZERO);
                }
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

fn with_bias<E: Element>(parameters: Affine<'_, E>) -> layer_norm::Parameters<'_, E> {
    let bias = parameters.bias.unwrap_or_else(|| unreachable!("LayerNorm has a bias"));
    layer_norm::Parameters { weight: parameters.weight.host(), bias: bias.host() }
}
