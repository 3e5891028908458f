//! One block: x = x + attention(norm1(x)); x = x + feed-forward(norm2(x)).

use device::cuda::Error;
use device::{View, ViewMut};

use super::buffers::{Saved, Scratch};
use super::kernels::Kernels;
use super::layers::{SegmentGradients, parameters};
use crate::fused::linear::Linear;
use crate::fused::parameter_ranges::{AffineRanges, BlockRanges};
use crate::fused::size::Size;
use crate::ops::attention::cuda::Forward;
use crate::ops::kernels::CudaElement;
use crate::ops::matmul::cuda::Extras;
use crate::ops::norm::{NormBackward, NormSaved};
use crate::ops::rope::cuda::Direction;

/// What one block saved.
pub(super) struct BlockSaved<'a, E: CudaElement> {
    pub(super) input: View<'a, E>,
    /// The next block's input.
    pub(super) output: ViewMut<'a, E>,
    pub(super) normed1: ViewMut<'a, E>,
    pub(super) qkv: ViewMut<'a, E>,
    pub(super) attention: ViewMut<'a, E>,
    pub(super) log_sums: ViewMut<'a, f32>,
    pub(super) middle: ViewMut<'a, E>,
    pub(super) normed2: ViewMut<'a, E>,
    pub(super) expanded: ViewMut<'a, E>,
    pub(super) hidden: ViewMut<'a, E>,
    pub(super) stats1: ViewMut<'a, f32>,
    pub(super) stats2: ViewMut<'a, f32>,
}

impl<E: CudaElement> Saved<E> {
    pub(super) fn block(&mut self, layer: usize, size: &Size) -> BlockSaved<'_, E> {
        fn slot<T: device::Element>(
            all: &mut device::DeviceBuffer<T>,
            layer: usize,
            len: usize,
        ) -> ViewMut<'_, T> {
            all.view_mut().slice(layer * len..(layer + 1) * len)
        }
        let stream = size.rows * size.width;
        let (before, after) = self.streams.view_mut().split_at((layer + 1) * stream);
        let input = before.slice(layer * stream..(layer + 1) * stream).into_view();
        let layer = layer % size.saved_blocks();
        let stats = slot(&mut self.stats, layer, 2 * size.stats());
        let (stats1, stats2) = stats.split_at(size.stats());
        BlockSaved {
            input,
            output: after.slice(0..stream),
            normed1: slot(&mut self.normed1, layer, stream),
            qkv: slot(&mut self.qkv, layer, size.rows * size.qkv()),
            attention: slot(&mut self.attention, layer, stream),
            log_sums: slot(&mut self.log_sums, layer, size.rows * size.attention.heads),
            middle: slot(&mut self.middle, layer, stream),
            normed2: slot(&mut self.normed2, layer, stream),
            expanded: slot(&mut self.expanded, layer, size.rows * size.expanded()),
            hidden: slot(&mut self.hidden, layer, size.rows * size.feed_forward),
            stats1,
            stats2,
        }
    }
}

/// What a block computes with.
pub(super) struct BlockPass<'a, E: CudaElement> {
    pub(super) size: &'a Size,
    pub(super) ranges: &'a BlockRanges,
    /// The weights of the block's segment.
    pub(super) weights: View<'a, E>,
    pub(super) kernels: &'a mut Kernels,
    pub(super) scratch: &'a mut Scratch<E>,
}

/// A norm and the linear layer behind it, for backward.
struct NormedLinear<'a, E: CudaElement> {
    norm: &'a AffineRanges,
    saved: NormSaved<'a, E>,
    /// Output of the norm.
    normed: View<'a, E>,
    linear: Linear,
    /// The gradient of the output; in `scratch.wide` where there is none.
    dy: Option<View<'a, E>>,
}

impl<E: CudaElement> BlockPass<'_, E> {
    /// Writes the block's output and everything it saves.
    pub(super) fn forward(&mut self, saved: &mut BlockSaved<'_, E>) -> Result<(), Error> {
        self.recompute(saved)?;
        let extras = Extras { residual: Some(saved.middle.as_view()), ..Extras::default() };
        let parameters = parameters(self.ranges.linear(Linear::Contract), self.weights);
        let hidden = saved.hidden.as_view();
        let output = saved.output.reborrow();
        self.kernels.layers.forward(Linear::Contract, output, hidden, parameters, extras)
    }

    /// Writes everything that the block saves: all of forward but its output.
    pub(super) fn recompute(&mut self, saved: &mut BlockSaved<'_, E>) -> Result<(), Error> {
        self.attention_forward(saved)?;
        self.expand(saved)
    }

    /// From the block's input to the stream after attention.
    fn attention_forward(&mut self, saved: &mut BlockSaved<'_, E>) -> Result<(), Error> {
        let Self { size, ranges, weights, kernels, scratch } = self;
        let shape = kernels.layers.norm_shape();
        let norm = parameters(&ranges.norm1, *weights);
        let normed = saved.normed1.reborrow();
        kernels.norm.forward(normed, saved.stats1.reborrow(), saved.input, norm, shape)?;
        let layer = parameters(ranges.linear(Linear::AttentionIn), *weights);
        let normed = saved.normed1.as_view();
        let qkv = saved.qkv.reborrow();
        kernels.layers.forward(Linear::AttentionIn, qkv, normed, layer, Extras::default())?;
        if let (Some(rope), Some(tables)) = (&kernels.rope, &scratch.rope) {
            rope.rotate(saved.qkv.reborrow(), tables, size.rope(), Direction::Forward)?;
        }
        let output = saved.attention.reborrow();
        let log_sums = saved.log_sums.reborrow();
        kernels.attention.forward(output, log_sums, saved.qkv.as_view(), size.attention)?;
        let layer = parameters(ranges.linear(Linear::AttentionOut), *weights);
        let extras = Extras { residual: Some(saved.input), ..Extras::default() };
        let attention = saved.attention.as_view();
        let middle = saved.middle.reborrow();
        kernels.layers.forward(Linear::AttentionOut, middle, attention, layer, extras)
    }

    /// From the stream after attention to the last linear layer's input.
    fn expand(&mut self, saved: &mut BlockSaved<'_, E>) -> Result<(), Error> {
        let Self { size, ranges, weights, kernels, .. } = self;
        let shape = kernels.layers.norm_shape();
        let norm = parameters(&ranges.norm2, *weights);
        kernels.norm.forward(
            saved.normed2.reborrow(),
            saved.stats2.reborrow(),
            saved.middle.as_view(),
            norm,
            shape,
        )?;
        let layer = parameters(ranges.linear(Linear::Expand), *weights);
        let normed = saved.normed2.as_view();
        let expanded = saved.expanded.reborrow();
        let hidden = saved.hidden.reborrow();
        match &kernels.swiglu {
            None => {
                let extras = Extras { before_gelu: Some(expanded), ..Extras::default() };
                kernels.layers.forward(Linear::Expand, hidden, normed, layer, extras)
            }
            Some(swiglu) => {
                let extras = Extras::default();
                kernels.layers.forward(Linear::Expand, expanded, normed, layer, extras)?;
                swiglu.forward(hidden, saved.expanded.as_view(), size.feed_forward)
            }
        }
    }

    /// Turns the gradient of the block's output (in `scratch.gradient`) into that of its input, and
    /// writes or adds to the gradients of the block's segment. What the block saved is overwritten.
    pub(super) fn backward(
        &mut self,
        saved: &mut BlockSaved<'_, E>,
        gradients: &mut SegmentGradients<'_>,
    ) -> Result<(), Error> {
        self.feed_forward_backward(saved, gradients)?;
        self.attention_backward(saved, gradients)
    }

    /// From the gradient of the block's output to that of the stream after attention.
    fn feed_forward_backward(
        &mut self,
        saved: &mut BlockSaved<'_, E>,
        gradients: &mut SegmentGradients<'_>,
    ) -> Result<(), Error> {
        let Self { size, ranges, weights, kernels, scratch } = self;
        let Scratch { gradient, wide, partials, .. } = &mut **scratch;
        let contract = ranges.linear(Linear::Contract);
        let weight = parameters(contract, *weights).weight;
        let mut dhidden = wide.view_mut().slice(0..size.rows * size.feed_forward);
        let dy = gradient.view();
        let before_gelu = kernels.swiglu.is_none().then(|| saved.expanded.as_view());
        kernels.layers.input(Linear::Contract, dhidden.reborrow(), dy, weight, before_gelu)?;
        let x = saved.hidden.as_view();
        kernels.layers.parameters(Linear::Contract, gradients, contract, dy, x, partials)?;
        let dy = match &kernels.swiglu {
            None => None,
            Some(swiglu) => {
                let expanded = saved.expanded.reborrow();
                swiglu.backward(expanded, dhidden.as_view(), size.feed_forward)?;
                Some(saved.expanded.as_view())
            }
        };
        let norm = &self.ranges.norm2;
        let normed = saved.normed2.as_view();
        let saved = NormSaved { input: saved.middle.as_view(), stats: saved.stats2.as_view() };
        let linear = Linear::Expand;
        self.input_backward(NormedLinear { norm, saved, normed, linear, dy }, gradients)
    }

    /// From the gradient of the stream after attention to that of the block's input.
    fn attention_backward(
        &mut self,
        saved: &mut BlockSaved<'_, E>,
        gradients: &mut SegmentGradients<'_>,
    ) -> Result<(), Error> {
        let Self { size, ranges, weights, kernels, scratch } = self;
        let Scratch { branch, gradient, wide, delta, partials, rope, .. } = &mut **scratch;
        let out = ranges.linear(Linear::AttentionOut);
        let weight = parameters(out, *weights).weight;
        let dy = gradient.view();
        kernels.layers.input(Linear::AttentionOut, branch.view_mut(), dy, weight, None)?;
        let x = saved.attention.as_view();
        kernels.layers.parameters(Linear::AttentionOut, gradients, out, dy, x, partials)?;
        let mut dqkv = wide.view_mut().slice(0..size.rows * size.qkv());
        let forward =
            Forward { output: saved.attention.as_view(), log_sums: saved.log_sums.as_view() };
        let qkv = saved.qkv.as_view();
        let delta = delta.view_mut();
        let doutput = branch.view();
        let shape = size.attention;
        kernels.attention.backward(dqkv.reborrow(), delta, doutput, qkv, forward, shape)?;
        if let (Some(kernel), Some(tables)) = (&kernels.rope, &*rope) {
            kernel.rotate(dqkv.reborrow(), tables, size.rope(), Direction::Backward)?;
        }
        let norm = &self.ranges.norm1;
        let normed = saved.normed1.as_view();
        let saved = NormSaved { input: saved.input, stats: saved.stats1.as_view() };
        let linear = Linear::AttentionIn;
        self.input_backward(NormedLinear { norm, saved, normed, linear, dy: None }, gradients)
    }

    /// From the gradient of a linear layer's output to that of the stream before its norm.
    fn input_backward(
        &mut self,
        layer: NormedLinear<'_, E>,
        gradients: &mut SegmentGradients<'_>,
    ) -> Result<(), Error> {
        let Self { size, ranges, weights, kernels, scratch } = self;
        let Scratch { branch, gradient, wide, partials, .. } = &mut **scratch;
        let NormedLinear { norm: norm_ranges, saved, normed, linear, dy } = layer;
        let norm = parameters(norm_ranges, *weights);
        let outputs = size.linear(linear).outputs;
        let dy = dy.unwrap_or_else(|| wide.view().slice(0..size.rows * outputs));
        let linear_ranges = ranges.linear(linear);
        let weight = parameters(linear_ranges, *weights).weight;
        kernels.layers.input(linear, branch.view_mut(), dy, weight, None)?;
        kernels.layers.parameters(linear, gradients, linear_ranges, dy, normed, partials)?;
        let operands = NormBackward {
            dx: gradient.view_mut(),
            accumulate: true,
            dy: branch.view(),
            saved,
            weight: norm.weight,
        };
        kernels.layers.norm(&kernels.norm, gradients, norm_ranges, operands, partials)
    }
}
