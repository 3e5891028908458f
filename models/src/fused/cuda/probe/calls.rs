//! Runs one operation on the probe's buffers, which afterwards hold whatever it wrote.

use device::{DeviceBuffer, View, ViewMut};

use super::Operations;
use crate::Error;
use crate::fused::cuda::block::BlockSaved;
use crate::fused::cuda::buffers::Scratch;
use crate::fused::cuda::layers::{SegmentGradients, parameters};
use crate::fused::linear::Linear;
use crate::fused::parameter_ranges::{AffineRanges, SegmentRange};
use crate::fused::size::{Activation, Size};
use crate::layout::head_rows;
use crate::meter::{Kind, Op, Role};
use crate::ops::attention::cuda::Forward;
use crate::ops::cross_entropy::cuda::LogitsShape;
use crate::ops::kernels::CudaElement;
use crate::ops::matmul::Sums;
use crate::ops::matmul::cuda::Extras;
use crate::ops::norm::{NormBackward, NormSaved};
use crate::ops::rope::cuda::Direction;

/// Of the sum of losses.
const LOSS_SCALE: f32 = 1e-3;

impl<E: CudaElement> Operations<E> {
    pub(super) fn run(&mut self, op: Op) -> Result<(), Error> {
        let (role, kind) = op;
        match role {
            Role::Embedding if kind == Kind::Forward => self.embedding(),
            Role::Embedding => self.embedding_backward(),
            Role::Norm => self.norm(kind),
            Role::AttentionIn => self.linear(Linear::AttentionIn, kind),
            Role::AttentionOut => self.linear(Linear::AttentionOut, kind),
            Role::Expand => self.linear(Linear::Expand, kind),
            Role::Contract => self.linear(Linear::Contract, kind),
            Role::Rope => self.rope(),
            Role::Attention if kind == Kind::Forward => self.attention(),
            Role::Attention => self.attention_backward(),
            Role::Activation => self.activation(kind),
            Role::Head => self.head(kind),
            Role::CrossEntropy => self.cross_entropy(),
            Role::GradientNorm => self.update.gradient_norm(self.gradients.view()),
            Role::AdamW => self.update.adamw(self.gradients.view()),
            Role::UpdateNorm => self.update.update_norm(),
        }
    }

    fn embedding(&mut self) -> Result<(), Error> {
        let Self { size, ranges, weights, saved, tokens, kernels, .. } = self;
        let ranges = &ranges.embeddings;
        let segment = weights.view().slice(ranges.segment.range.clone());
        let table = segment.slice(ranges.tokens.clone());
        let positions = ranges.positions.clone().map(|range| segment.slice(range));
        let output = saved.streams.view_mut().slice(0..size.rows * size.width);
        let sequence_tokens = size.attention.tokens;
        let inputs = tokens.inputs();
        Ok(kernels.embedding.forward(output, inputs, table, positions, sequence_tokens)?)
    }

    fn embedding_backward(&mut self) -> Result<(), Error> {
        let Self { size, ranges, gradients, scratch, groups, kernels, .. } = self;
        let ranges = &ranges.embeddings;
        let mut segment = of_segment(gradients, &ranges.segment);
        let dx = scratch.gradient.view();
        let dtokens = segment.reborrow().slice(ranges.tokens.clone());
        kernels.embedding.backward_tokens(dtokens, dx, groups.view(), size.width)?;
        let Some(positions) = ranges.positions.clone() else { return Ok(()) };
        let dpositions = segment.slice(positions);
        let tokens = size.attention.tokens;
        Ok(kernels.embedding.backward_positions(dpositions, dx, tokens, size.width, true)?)
    }

    /// The first norm of the block.
    fn norm(&mut self, kind: Kind) -> Result<(), Error> {
        let Self { size, ranges, weights, gradients, saved, scratch, kernels, .. } = self;
        let block = &ranges.blocks[0];
        let norm = parameters(&block.norm1, weights.view().slice(block.segment.range.clone()));
        let BlockSaved { input, normed1, stats1, .. } = saved.block(0, size);
        let Scratch { branch, gradient, partials, .. } = scratch;
        if kind == Kind::Forward {
            let shape = kernels.layers.norm_shape();
            return Ok(kernels.norm.forward(normed1, stats1, input, norm, shape)?);
        }
        let norm_saved = NormSaved { input, stats: stats1.into_view() };
        let view = of_segment(gradients, &block.segment);
        let operands = NormBackward {
            dx: gradient.view_mut(),
            accumulate: true,
            dy: branch.view(),
            saved: norm_saved,
            weight: norm.weight,
        };
        let gradients = &mut SegmentGradients { view, sums: Sums::Add };
        let kernels = &*kernels;
        Ok(kernels.layers.norm(&kernels.norm, gradients, &block.norm1, operands, partials)?)
    }

    fn linear(&mut self, linear: Linear, kind: Kind) -> Result<(), Error> {
        match kind {
            Kind::Forward => self.linear_forward(linear),
            Kind::Input => self.linear_input(linear),
            Kind::Weight => self.linear_weight(linear),
            _ => self.linear_bias(linear),
        }
    }

    fn linear_forward(&mut self, linear: Linear) -> Result<(), Error> {
        let Self { size, ranges, weights, saved, kernels, .. } = self;
        let block = &ranges.blocks[0];
        let segment = weights.view().slice(block.segment.range.clone());
        let layer = parameters(block.linear(linear), segment);
        let saved = saved.block(0, size);
        let residual = |added| Extras { residual: Some(added), ..Extras::default() };
        let (y, x, extras) = match linear {
            Linear::AttentionIn => (saved.qkv, saved.normed1.into_view(), Extras::default()),
            Linear::AttentionOut => {
                (saved.middle, saved.attention.into_view(), residual(saved.input))
            }
            Linear::Expand if size.activation == Activation::Gelu => {
                let before_gelu = Some(saved.expanded);
                let extras = Extras { before_gelu, ..Extras::default() };
                (saved.hidden, saved.normed2.into_view(), extras)
            }
            Linear::Expand => (saved.expanded, saved.normed2.into_view(), Extras::default()),
            Linear::Contract => {
                (saved.output, saved.hidden.into_view(), residual(saved.middle.into_view()))
            }
        };
        Ok(kernels.layers.forward(linear, y, x, layer, extras)?)
    }

    fn linear_input(&mut self, linear: Linear) -> Result<(), Error> {
        let Self { size, ranges, weights, saved, scratch, kernels, .. } = self;
        let block = &ranges.blocks[0];
        let segment = weights.view().slice(block.segment.range.clone());
        let weight = parameters(block.linear(linear), segment).weight;
        let saved = saved.block(0, size);
        if linear == Linear::Contract {
            let dx = scratch.wide.view_mut().slice(0..size.rows * size.feed_forward);
            let has_gelu = size.activation == Activation::Gelu;
            let before_gelu = has_gelu.then(|| saved.expanded.into_view());
            let dy = scratch.gradient.view();
            return Ok(kernels.layers.input(linear, dx, dy, weight, before_gelu)?);
        }
        let Scratch { branch, gradient, wide, .. } = scratch;
        let dy = output_gradient(linear, size, gradient, wide, saved.expanded.into_view());
        Ok(kernels.layers.input(linear, branch.view_mut(), dy, weight, None)?)
    }

    /// Without the bias, which is an operation of its own.
    fn linear_weight(&mut self, linear: Linear) -> Result<(), Error> {
        let Self { size, ranges, gradients, saved, scratch, kernels, .. } = self;
        let block = &ranges.blocks[0];
        let layer = AffineRanges { bias: None, ..block.linear(linear).clone() };
        let saved = saved.block(0, size);
        let Scratch { gradient, wide, partials, .. } = scratch;
        let x = match linear {
            Linear::AttentionIn => saved.normed1.into_view(),
            Linear::AttentionOut => saved.attention.into_view(),
            Linear::Expand => saved.normed2.into_view(),
            Linear::Contract => saved.hidden.into_view(),
        };
        let dy = output_gradient(linear, size, gradient, wide, saved.expanded.into_view());
        let view = of_segment(gradients, &block.segment);
        let mut gradients = SegmentGradients { view, sums: Sums::Add };
        Ok(kernels.layers.parameters(linear, &mut gradients, &layer, dy, x, partials)?)
    }

    fn linear_bias(&mut self, linear: Linear) -> Result<(), Error> {
        let Self { size, ranges, gradients, saved, scratch, column_sums, .. } = self;
        let block = &ranges.blocks[0];
        let Some(bias) = block.linear(linear).bias.clone() else {
            unreachable!("{linear:?} has no bias")
        };
        let expanded = saved.block(0, size).expanded.into_view();
        let Scratch { gradient, wide, partials, .. } = scratch;
        let dy = output_gradient(linear, size, gradient, wide, expanded);
        let dbias = of_segment(gradients, &block.segment).slice(bias);
        Ok(column_sums.of(dbias, dy, partials, true)?)
    }

    fn rope(&mut self) -> Result<(), Error> {
        let Self { size, saved, scratch, kernels, .. } = self;
        let (Some(rope), Some(tables)) = (&kernels.rope, &scratch.rope) else {
            unreachable!("this family has no RoPE")
        };
        Ok(rope.rotate(saved.block(0, size).qkv, tables, size.rope(), Direction::Forward)?)
    }

    fn attention(&mut self) -> Result<(), Error> {
        let Self { size, saved, kernels, .. } = self;
        let BlockSaved { attention, log_sums, qkv, .. } = saved.block(0, size);
        Ok(kernels.attention.forward(attention, log_sums, qkv.into_view(), size.attention)?)
    }

    fn attention_backward(&mut self) -> Result<(), Error> {
        let Self { size, saved, scratch, kernels, .. } = self;
        let BlockSaved { attention, log_sums, qkv, .. } = saved.block(0, size);
        let forward = Forward { output: attention.into_view(), log_sums: log_sums.into_view() };
        let dqkv = scratch.wide.view_mut().slice(0..size.rows * size.qkv());
        let doutput = scratch.branch.view();
        let delta = scratch.delta.view_mut();
        let qkv = qkv.into_view();
        Ok(kernels.attention.backward(dqkv, delta, doutput, qkv, forward, size.attention)?)
    }

    fn activation(&mut self, kind: Kind) -> Result<(), Error> {
        let Self { size, saved, scratch, kernels, .. } = self;
        let BlockSaved { expanded, hidden, .. } = saved.block(0, size);
        let Some(swiglu) = &kernels.swiglu else { unreachable!("GELU is an epilogue") };
        if kind == Kind::Forward {
            return Ok(swiglu.forward(hidden, expanded.into_view(), size.feed_forward)?);
        }
        let dhidden = scratch.wide.view().slice(0..size.rows * size.feed_forward);
        Ok(swiglu.backward(expanded, dhidden, size.feed_forward)?)
    }

    /// One chunk of tokens.
    fn head(&mut self, kind: Kind) -> Result<(), Error> {
        let shape = self.head_shape();
        let Self { ranges, weights, gradients, scratch, kernels, .. } = self;
        let ranges = &ranges.head;
        let segment = weights.view().slice(ranges.segment.range.clone());
        let table = segment.slice(ranges.padded.clone());
        let products = kernels.head.of(shape.rows);
        let blas = &mut kernels.layers.blas;
        let Scratch { normed, branch, logits, .. } = scratch;
        let hidden = normed.view().slice(0..shape.rows * shape.inputs);
        let dhidden = branch.view_mut().slice(0..shape.rows * shape.inputs);
        match kind {
            Kind::Forward => {
                products.forward(blas, logits.view_mut(), hidden, table, Extras::default())?;
            }
            Kind::Input => products.input(blas, dhidden, logits.view(), table, None)?,
            _ => {
                let dtable = of_segment(gradients, &ranges.segment).slice(ranges.padded.clone());
                products.weight(blas, dtable, logits.view(), hidden, Sums::Add)?
            }
        }
        Ok(())
    }

    fn cross_entropy(&mut self) -> Result<(), Error> {
        let tokens = self.head_shape().rows;
        let Self { size, scratch, tokens: sent, kernels, .. } = self;
        let vocabulary = size.vocabulary;
        let shape = LogitsShape { tokens, vocabulary, stride: head_rows(vocabulary) };
        let Scratch { loss, losses, logits, .. } = scratch;
        let targets = sent.targets().slice(0..tokens);
        Ok(kernels.cross_entropy.run(
            loss.view_mut(),
            losses.view_mut(),
            logits.view_mut(),
            targets,
            shape,
            Some(LOSS_SCALE),
        )?)
    }
}

/// The gradients of a segment.
fn of_segment<'a>(
    gradients: &'a mut DeviceBuffer<f32>,
    segment: &SegmentRange,
) -> ViewMut<'a, f32> {
    gradients.view_mut().slice(segment.range.clone())
}

/// The gradient of a layer's output, where backward has it.
fn output_gradient<'a, E: CudaElement>(
    linear: Linear,
    size: &Size,
    gradient: &'a DeviceBuffer<E>,
    wide: &'a DeviceBuffer<E>,
    expanded: View<'a, E>,
) -> View<'a, E> {
    match linear {
        Linear::AttentionIn => wide.view().slice(0..size.rows * size.qkv()),
        Linear::Expand if size.activation == Activation::SwiGlu => expanded,
        Linear::Expand => wide.view().slice(0..size.rows * size.feed_forward),
        Linear::AttentionOut | Linear::Contract => gradient.view(),
    }
}
