//! The linear layers and norms of a block, with the parameters and gradients of its segment.

use device::cuda::Error;
use device::{View, ViewMut};

use super::kernels::epilogues;
use crate::fused::linear::Linear;
use crate::fused::parameter_ranges::AffineRanges;
use crate::fused::size::Size;
use crate::ops::kernels::CudaElement;
use crate::ops::matmul::Sums;
use crate::ops::matmul::cuda::{Blas, Extras, LinearProducts};
use crate::ops::norm::{NormBackward, NormKernels, NormParameters, NormShape};
use crate::ops::row_sums::cuda::{ColumnSums, Partials};

/// The products of all linear layers, and sums over rows.
#[derive(Debug)]
pub(super) struct Layers {
    pub(super) blas: Blas,
    column_sums: ColumnSums,
    /// In the order of [`Linear::ALL`].
    products: Vec<LinearProducts>,
    norm_shape: NormShape,
}

/// Gradients of a segment, which are written or added to.
pub(super) struct SegmentGradients<'a> {
    pub(super) view: ViewMut<'a, f32>,
    pub(super) sums: Sums,
}

impl Layers {
    pub(super) fn new<E: CudaElement>(
        blas: Blas,
        column_sums: ColumnSums,
        size: &Size,
    ) -> Result<Self, Error> {
        let products = Linear::ALL.map(|linear| {
            LinearProducts::new::<E>(&blas, size.linear(linear), epilogues(size, linear))
        });
        let products = products.into_iter().collect::<Result<_, _>>()?;
        let norm_shape = NormShape { rows: size.rows, width: size.width };
        Ok(Self { blas, column_sums, products, norm_shape })
    }

    /// What all norms are applied to.
    pub(super) fn norm_shape(&self) -> NormShape {
        self.norm_shape
    }

    /// Writes `y`, with what the epilogue adds.
    pub(super) fn forward<E: CudaElement>(
        &mut self,
        linear: Linear,
        y: ViewMut<'_, E>,
        x: View<'_, E>,
        parameters: NormParameters<'_, E>,
        extras: Extras<'_, E>,
    ) -> Result<(), Error> {
        let extras = Extras { bias: parameters.bias, ..extras };
        self.products[linear as usize].forward(&mut self.blas, y, x, parameters.weight, extras)
    }

    /// Writes the gradient of a layer's input.
    pub(super) fn input<E: CudaElement>(
        &mut self,
        linear: Linear,
        dx: ViewMut<'_, E>,
        dy: View<'_, E>,
        weight: View<'_, E>,
        before_gelu: Option<View<'_, E>>,
    ) -> Result<(), Error> {
        self.products[linear as usize].input(&mut self.blas, dx, dy, weight, before_gelu)
    }

    /// Writes or adds the gradients of a layer's weight and bias.
    pub(super) fn parameters<E: CudaElement>(
        &mut self,
        linear: Linear,
        gradients: &mut SegmentGradients<'_>,
        ranges: &AffineRanges,
        dy: View<'_, E>,
        x: View<'_, E>,
        partials: &mut Partials,
    ) -> Result<(), Error> {
        let SegmentGradients { view, sums } = gradients;
        let dweight = view.reborrow().slice(ranges.weight.clone());
        self.products[linear as usize].weight(&mut self.blas, dweight, dy, x, *sums)?;
        let Some(bias) = ranges.bias.clone() else { return Ok(()) };
        let dbias = view.reborrow().slice(bias);
        self.column_sums.of(dbias, dy, partials, *sums == Sums::Add)
    }

    /// All gradients of a norm.
    pub(super) fn norm<E: CudaElement>(
        &self,
        norm: &NormKernels,
        gradients: &mut SegmentGradients<'_>,
        ranges: &AffineRanges,
        operands: NormBackward<'_, E>,
        partials: &mut Partials,
    ) -> Result<(), Error> {
        let shape = self.norm_shape;
        norm.backward(operands, partials, shape)?;
        let SegmentGradients { view, sums } = gradients;
        let (first, second) = partials.of_norm(shape.rows, shape.width);
        let adds = *sums == Sums::Add;
        let dweight = view.reborrow().slice(ranges.weight.clone());
        self.column_sums.add_up(dweight, first.as_view(), adds)?;
        let Some(bias) = ranges.bias.clone() else { return Ok(()) };
        let dbias = view.reborrow().slice(bias);
        self.column_sums.add_up(dbias, second.as_view(), adds)
    }
}

/// Weight and bias out of the weights of their segment.
pub(super) fn parameters<'a, E: CudaElement>(
    ranges: &AffineRanges,
    segment: View<'a, E>,
) -> NormParameters<'a, E> {
    NormParameters {
        weight: segment.slice(ranges.weight.clone()),
        bias: ranges.bias.clone().map(|bias| segment.slice(bias)),
    }
}
