//! One block: x = x + attention(norm1(x)); x = x + feed-forward(norm2(x)).

use super::activations::BlockActivations;
use super::linear::Linear;
use super::norm::NormActivations;
use super::parameter_ranges::{AffineRanges, BlockRanges};
use super::scratch::{OpContext, Scratch};
use super::size::{Activation, Size};
use crate::meter::{Kind, Role};
use crate::ops::matmul::{self, Epilogue, Sums};
use crate::ops::{Element, attention, rope, swiglu, work};

/// The weights of a block.
#[derive(Clone, Copy)]
pub(super) struct BlockWeights<'a, E: Element> {
    pub(super) ranges: &'a BlockRanges,
    /// Those of the block's segment.
    pub(super) segment: &'a [E],
}

impl<'a, E: Element> BlockWeights<'a, E> {
    /// Weight and bias of a linear layer.
    fn linear(self, linear: Linear) -> (&'a [E], Option<&'a [E]>) {
        let parameters = self.ranges.linear(linear).of(self.segment);
        (parameters.weight, parameters.bias)
    }
}

/// Writes the block's output and everything it saves.
pub(super) fn forward<E: Element>(
    size: &Size,
    weights: BlockWeights<'_, E>,
    mut saved: BlockActivations<'_, E>,
    scratch: &mut Scratch<E>,
) {
    let pass = ForwardPass { size, weights, kind: Kind::Forward };
    pass.attention(&mut saved, scratch);
    pass.expand(&mut saved, scratch);
    pass.contract(&mut saved, scratch);
}

/// Recomputes everything that the block saves: all of forward but its output.
pub(super) fn recompute<E: Element>(
    size: &Size,
    weights: BlockWeights<'_, E>,
    saved: &mut BlockActivations<'_, E>,
    scratch: &mut Scratch<E>,
) {
    let pass = ForwardPass { size, weights, kind: Kind::Recompute };
    pass.attention(saved, scratch);
    pass.expand(saved, scratch);
}

/// Turns the gradient of the block's output (in `scratch.gradient`) into that of its input, and
/// writes or adds to the gradients of the block's segment. What the block saved is overwritten.
pub(super) fn backward<E: Element>(
    size: &Size,
    weights: BlockWeights<'_, E>,
    mut saved: BlockActivations<'_, E>,
    gradients: &mut [E::Wide],
    sums: Sums,
    scratch: &mut Scratch<E>,
) {
    let mut pass = BackwardPass { size, weights, gradients, sums };
    pass.feed_forward(&mut saved, scratch);
    pass.attention(&saved, scratch);
}

/// The forward of one block.
struct ForwardPass<'a, E: Element> {
    size: &'a Size,
    weights: BlockWeights<'a, E>,
    /// Forward or recomputation.
    kind: Kind,
}

impl<E: Element> ForwardPass<'_, E> {
    /// From the block's input to the stream after attention.
    fn attention(&self, saved: &mut BlockActivations<'_, E>, scratch: &mut Scratch<E>) {
        let size = self.size;
        let kind = self.kind;
        let Scratch { normed, ops, attention: workspace, rope: tables, .. } = scratch;
        let normed = normed.host_mut();
        let norm1 = &self.weights.ranges.norm1;
        self.norm(norm1, normed, saved.stats1, saved.input, ops);
        self.linear(Linear::AttentionIn, saved.qkv, normed, Epilogue::Store, ops);
        if let Some(tables) = tables {
            let work = || size.rope_work::<E>();
            ops.meter.time((Role::Rope, kind), work, || {
                rope::forward(saved.qkv, tables, size.rope());
            });
        }
        let work = || work::attention::<E>(&size.attention);
        ops.meter.time((Role::Attention, kind), work, || {
            let BlockActivations { attention, log_sums, qkv, .. } = saved;
            attention::forward(attention, log_sums, qkv, size.attention, workspace);
        });
        let add = Epilogue::Residual(saved.input);
        self.linear(Linear::AttentionOut, saved.middle, saved.attention, add, ops);
    }

    /// From the stream after attention to the last linear layer's input, in `scratch.hidden`.
    fn expand(&self, saved: &mut BlockActivations<'_, E>, scratch: &mut Scratch<E>) {
        let Scratch { normed, hidden, ops, .. } = scratch;
        let normed = normed.host_mut();
        let hidden = hidden.host_mut();
        let norm2 = &self.weights.ranges.norm2;
        self.norm(norm2, normed, saved.stats2, saved.middle, ops);
        match self.size.activation {
            Activation::Gelu => {
                let gelu = Epilogue::Gelu(hidden);
                self.linear(Linear::Expand, saved.expanded, normed, gelu, ops);
            }
            Activation::SwiGlu => {
                self.linear(Linear::Expand, saved.expanded, normed, Epilogue::Store, ops);
                let elements = hidden.len();
                let work = || work::elementwise::<E>(3, elements);
                ops.meter.time((Role::Activation, self.kind), work, || {
                    swiglu::forward(hidden, saved.expanded, self.size.feed_forward);
                });
            }
        }
    }

    /// From the last linear layer's input to the block's output.
    fn contract(&self, saved: &mut BlockActivations<'_, E>, scratch: &mut Scratch<E>) {
        let Scratch { hidden, ops, .. } = scratch;
        let add = Epilogue::Residual(saved.middle);
        self.linear(Linear::Contract, saved.output, hidden.host(), add, ops);
    }

    fn norm(
        &self,
        ranges: &AffineRanges,
        y: &mut [E],
        stats: &mut [E::Wide],
        x: &[E],
        ops: &mut OpContext<E>,
    ) {
        let work = || self.size.norm_work::<E>(false);
        ops.meter.time((Role::Norm, self.kind), work, || {
            self.size.norm.forward(y, stats, x, ranges.of(self.weights.segment));
        });
    }

    fn linear(
        &self,
        linear: Linear,
        y: &mut [E],
        x: &[E],
        epilogue: Epilogue<'_, E>,
        ops: &mut OpContext<E>,
    ) {
        let shape = self.size.linear(linear);
        let (weight, bias) = self.weights.linear(linear);
        let matrices = usize::from(!matches!(epilogue, Epilogue::Store));
        ops.meter.time(
            (linear.role(), self.kind),
            || work::linear::<E>(shape, matrices),
            || matmul::forward(y, x, weight, (bias, epilogue), shape, &mut ops.packs),
        );
    }
}

/// The backward of one block.
struct BackwardPass<'a, E: Element> {
    size: &'a Size,
    weights: BlockWeights<'a, E>,
    /// Of the block's segment.
    gradients: &'a mut [E::Wide],
    sums: Sums,
}

/// What a linear layer read in forward.
enum LinearInput<'a, E> {
    /// Its input, saved or recomputed.
    Saved(&'a [E]),
    /// The argument of GELU, whose value was the input: the product that computes the input's
    /// gradient overwrites it with that value.
    BeforeGelu(&'a mut [E]),
}

impl<E: Element> BackwardPass<'_, E> {
    /// From the gradient of the block's output to that of the stream after attention.
    fn feed_forward(&mut self, saved: &mut BlockActivations<'_, E>, scratch: &mut Scratch<E>) {
        let size = self.size;
        let Scratch { normed, branch, gradient, hidden, wide, ops, .. } = scratch;
        let normed = normed.host_mut();
        let branch = branch.host_mut();
        let gradient = gradient.host_mut();
        let dhidden = &mut wide.host_mut()[..size.rows * size.feed_forward];
        let dexpanded: &[E] = match size.activation {
            Activation::Gelu => {
                let input = LinearInput::BeforeGelu(saved.expanded);
                self.linear(Linear::Contract, dhidden, gradient, input, ops);
                dhidden
            }
            Activation::SwiGlu => {
                let hidden = hidden.host_mut();
                let work = || work::elementwise::<E>(5, size.rows * size.feed_forward);
                ops.meter.time((Role::Activation, Kind::Recompute), work, || {
                    swiglu::recompute(hidden, saved.expanded, size.feed_forward);
                });
                let input = LinearInput::Saved(hidden);
                self.linear(Linear::Contract, dhidden, gradient, input, ops);
                ops.meter.time((Role::Activation, Kind::Backward), work, || {
                    swiglu::backward(saved.expanded, dhidden, size.feed_forward);
                });
                saved.expanded
            }
        };
        let norm2 = &self.weights.ranges.norm2;
        let saved = NormActivations { input: saved.middle, stats: saved.stats2 };
        self.recompute_norm(norm2, normed, saved, ops);
        self.linear(Linear::Expand, branch, dexpanded, LinearInput::Saved(normed), ops);
        self.norm(norm2, gradient, branch, saved, ops);
    }

    /// From the gradient of the stream after attention to that of the block's input.
    fn attention(&mut self, saved: &BlockActivations<'_, E>, scratch: &mut Scratch<E>) {
        let size = self.size;
        let Scratch { normed, branch, gradient, wide, ops, attention: workspace, rope, .. } =
            scratch;
        let normed = normed.host_mut();
        let branch = branch.host_mut();
        let gradient = gradient.host_mut();
        let dqkv = &mut wide.host_mut()[..size.rows * size.qkv()];
        let output = LinearInput::Saved(saved.attention);
        self.linear(Linear::AttentionOut, branch, gradient, output, ops);
        let work = || work::attention_backward::<E>(&size.attention);
        ops.meter.time((Role::Attention, Kind::Backward), work, || {
            let forward = (&*saved.attention, &*saved.log_sums);
            attention::backward(dqkv, branch, saved.qkv, forward, size.attention, workspace);
        });
        if let Some(tables) = rope {
            let work = || size.rope_work::<E>();
            ops.meter.time((Role::Rope, Kind::Backward), work, || {
                rope::backward(dqkv, tables, size.rope());
            });
        }
        let norm1 = &self.weights.ranges.norm1;
        let saved = NormActivations { input: saved.input, stats: saved.stats1 };
        self.recompute_norm(norm1, normed, saved, ops);
        self.linear(Linear::AttentionIn, branch, dqkv, LinearInput::Saved(normed), ops);
        self.norm(norm1, gradient, branch, saved, ops);
    }

    /// All gradients of a linear layer. That of its input comes first, because its product may
    /// compute the input that the others read.
    fn linear(
        &mut self,
        linear: Linear,
        dx: &mut [E],
        dy: &[E],
        mut input: LinearInput<'_, E>,
        ops: &mut OpContext<E>,
    ) {
        let OpContext { packs, meter, .. } = ops;
        let shape = self.size.linear(linear);
        let role = linear.role();
        let sums = self.sums;
        let (weight, _) = self.weights.linear(linear);
        let before_gelu = match &mut input {
            LinearInput::Saved(_) => None,
            LinearInput::BeforeGelu(before) => Some(&mut **before),
        };
        let matrices = if before_gelu.is_some() { 2 } else { 0 };
        let work = || work::linear_input::<E>(shape, matrices);
        meter.time((role, Kind::Input), work, || {
            matmul::backward_input(dx, dy, weight, before_gelu, shape, packs);
        });
        let x = match input {
            LinearInput::Saved(x) => x,
            LinearInput::BeforeGelu(x) => x,
        };
        let gradients = self.weights.ranges.linear(linear).of_mut(self.gradients);
        let work = || work::linear_weight::<E>(shape, sums);
        meter.time((role, Kind::Weight), work, || {
            matmul::backward_weight(gradients.weight, dy, x, sums, shape, packs);
        });
        if let Some(dbias) = gradients.bias {
            let work = || work::linear_bias::<E>(shape);
            meter.time((role, Kind::Bias), work, || matmul::backward_bias(dbias, dy, sums));
        }
    }

    /// A norm's output, from what it saved.
    fn recompute_norm(
        &self,
        ranges: &AffineRanges,
        y: &mut [E],
        saved: NormActivations<'_, E>,
        ops: &mut OpContext<E>,
    ) {
        let work = || self.size.norm_work::<E>(false);
        ops.meter.time((Role::Norm, Kind::Recompute), work, || {
            self.size.norm.recompute(y, saved, ranges.of(self.weights.segment));
        });
    }

    /// All gradients of a norm; `dx` is added to.
    fn norm(
        &mut self,
        ranges: &AffineRanges,
        dx: &mut [E],
        dy: &[E],
        saved: NormActivations<'_, E>,
        ops: &mut OpContext<E>,
    ) {
        let OpContext { meter, row_sums, .. } = ops;
        let gradients = ranges.of_mut(self.gradients).cleared_for(self.sums);
        let weight = ranges.of(self.weights.segment).weight;
        let work = || self.size.norm_work::<E>(true);
        meter.time((Role::Norm, Kind::Backward), work, || {
            self.size.norm.backward(dx, gradients, dy, saved, weight, row_sums);
        });
    }
}
