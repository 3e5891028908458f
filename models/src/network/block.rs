//! One block: x = x + attention(norm1(x)); x = x + feed-forward(norm2(x)).

use device::{View, ViewMut};

use super::activations::BlockActivations;
use super::linear::Linear;
use super::metered::Metered;
use super::ops::{AttentionSaved, Epilogue, Ops, Wide};
use super::parameter_ranges::{AffineRanges, BlockRanges};
use super::scratch::{Scratch, place};
use super::size::{Activation, Size};
use crate::Error;
use crate::meter::{Kind, Role};
use crate::ops::matmul::Sums;
use crate::ops::norm::{NormBackward, NormSaved};
use crate::ops::rope::Direction;
use crate::ops::{Element, work};

/// The weights of a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockWeights<'a, E: Element> {
    pub(super) ranges: &'a BlockRanges,
    /// Those of the block's segment.
    pub(super) segment: View<'a, E>,
}

/// One block with everything that its passes use.
pub(super) struct Block<'a, O: Ops> {
    pub(super) size: &'a Size,
    pub(super) weights: BlockWeights<'a, O::Element>,
    pub(super) saved: BlockActivations<'a, O::Element>,
    pub(super) scratch: &'a mut Scratch<O::Element>,
    pub(super) ops: &'a mut Metered<O>,
}

impl<O: Ops> Block<'_, O> {
    /// Writes the block's output and everything it saves.
    pub(super) fn forward(&mut self) -> Result<(), Error> {
        let Self { size, weights, saved, scratch, ops } = self;
        let mut pass = ForwardPass { size, weights: *weights, ops, kind: Kind::Forward };
        pass.attention(saved, scratch)?;
        pass.expand(saved, scratch)?;
        pass.contract(saved, scratch)
    }

    /// Recomputes everything that the block saves: all of forward but its output.
    pub(super) fn recompute(&mut self) -> Result<(), Error> {
        let Self { size, weights, saved, scratch, ops } = self;
        let mut pass = ForwardPass { size, weights: *weights, ops, kind: Kind::Recompute };
        pass.attention(saved, scratch)?;
        pass.expand(saved, scratch)
    }

    /// Converts the gradient of the block's output (in `scratch.gradient`) to that of its input,
    /// and writes or adds to the gradients of the block's segment. The saved activations are
    /// overwritten.
    pub(super) fn backward(
        &mut self,
        gradients: ViewMut<'_, Wide<O>>,
        sums: Sums,
    ) -> Result<(), Error> {
        let Self { size, weights, saved, scratch, ops } = self;
        let mut pass = BackwardPass { size, weights: *weights, ops, gradients, sums };
        pass.feed_forward(saved, scratch)?;
        pass.attention(saved, scratch)
    }
}

/// The forward of one block.
struct ForwardPass<'a, O: Ops> {
    size: &'a Size,
    weights: BlockWeights<'a, O::Element>,
    ops: &'a mut Metered<O>,
    /// Forward or recomputation.
    kind: Kind,
}

impl<O: Ops> ForwardPass<'_, O> {
    /// From the block's input to the stream after attention.
    fn attention(
        &mut self,
        saved: &mut BlockActivations<'_, O::Element>,
        scratch: &mut Scratch<O::Element>,
    ) -> Result<(), Error> {
        let BlockActivations { input, normed1, qkv, attention, log_sums, middle, stats1, .. } =
            saved;
        let size = self.size;
        let mut normed = place(normed1, &mut scratch.normed);
        let norm = &self.weights.ranges.norm1;
        self.norm(norm, normed.reborrow(), stats1.reborrow(), *input)?;
        let normed = normed.into_view();
        self.linear(Linear::AttentionIn, qkv.reborrow(), normed, Epilogue::Store)?;
        if size.has_rope() {
            let work = || size.rope_work::<O::Element>();
            self.ops.time((Role::Rope, self.kind), work, |ops| {
                ops.rope(qkv.reborrow(), Direction::Forward)
            })?;
        }
        let work = || work::attention::<O::Element>(&size.attention);
        self.ops.time((Role::Attention, self.kind), work, |ops| {
            ops.attention(attention.reborrow(), log_sums.reborrow(), qkv.as_view())
        })?;
        let add = Epilogue::Residual(*input);
        self.linear(Linear::AttentionOut, middle.reborrow(), attention.as_view(), add)
    }

    /// From the stream after attention to the last linear layer's input.
    fn expand(
        &mut self,
        saved: &mut BlockActivations<'_, O::Element>,
        scratch: &mut Scratch<O::Element>,
    ) -> Result<(), Error> {
        let BlockActivations { middle, normed2, expanded, hidden, stats2, .. } = saved;
        let mut normed = place(normed2, &mut scratch.normed);
        let norm = &self.weights.ranges.norm2;
        self.norm(norm, normed.reborrow(), stats2.reborrow(), middle.as_view())?;
        let normed = normed.into_view();
        let hidden = place(hidden, &mut scratch.hidden);
        match self.size.activation {
            Activation::Gelu => {
                let gelu = Epilogue::Gelu(hidden);
                self.linear(Linear::Expand, expanded.reborrow(), normed, gelu)
            }
            Activation::SwiGlu => {
                self.linear(Linear::Expand, expanded.reborrow(), normed, Epilogue::Store)?;
                let work = || work::elementwise::<O::Element>(3, self.size.hidden());
                self.ops.time((Role::Activation, self.kind), work, |ops| {
                    ops.swiglu(hidden, expanded.as_view())
                })
            }
        }
    }

    /// From the last linear layer's input to the block's output.
    fn contract(
        &mut self,
        saved: &mut BlockActivations<'_, O::Element>,
        scratch: &mut Scratch<O::Element>,
    ) -> Result<(), Error> {
        let BlockActivations { output, middle, hidden, .. } = saved;
        let hidden = place(hidden, &mut scratch.hidden).into_view();
        let add = Epilogue::Residual(middle.as_view());
        self.linear(Linear::Contract, output.reborrow(), hidden, add)
    }

    fn norm(
        &mut self,
        ranges: &AffineRanges,
        y: ViewMut<'_, O::Element>,
        stats: ViewMut<'_, Wide<O>>,
        x: View<'_, O::Element>,
    ) -> Result<(), Error> {
        let parameters = ranges.of(self.weights.segment);
        let work = || self.size.norm_work::<O::Element>(false);
        self.ops.time((Role::Norm, self.kind), work, |ops| ops.norm(y, stats, x, parameters))
    }

    fn linear(
        &mut self,
        linear: Linear,
        y: ViewMut<'_, O::Element>,
        x: View<'_, O::Element>,
        epilogue: Epilogue<'_, O::Element>,
    ) -> Result<(), Error> {
        let shape = self.size.linear(linear);
        let parameters = self.weights.ranges.linear(linear).of(self.weights.segment);
        let matrices = usize::from(!matches!(epilogue, Epilogue::Store));
        let work = || work::linear::<O::Element>(shape, matrices);
        self.ops.time((linear.role(), self.kind), work, |ops| {
            ops.linear(linear, y, x, parameters, epilogue)
        })
    }
}

/// The backward of one block.
struct BackwardPass<'a, O: Ops> {
    size: &'a Size,
    weights: BlockWeights<'a, O::Element>,
    ops: &'a mut Metered<O>,
    /// Those of the block's segment.
    gradients: ViewMut<'a, Wide<O>>,
    sums: Sums,
}

/// The input of a linear layer in forward.
enum LinearInput<'a, E: Element> {
    /// As it was, or recomputed.
    Saved(View<'a, E>),
    /// The value of GELU, if it was saved, and its argument, which it replaces otherwise.
    Gelu { before: ViewMut<'a, E>, value: Option<View<'a, E>> },
}

impl<E: Element> LinearInput<'_, E> {
    /// The argument of GELU.
    fn before_gelu(&mut self) -> Option<ViewMut<'_, E>> {
        match self {
            Self::Saved(_) => None,
            Self::Gelu { before, .. } => Some(before.reborrow()),
        }
    }

    /// The input, once the gradient of the input has been computed.
    fn value(&self) -> View<'_, E> {
        match self {
            Self::Saved(value) => *value,
            Self::Gelu { before, value } => value.unwrap_or_else(|| before.as_view()),
        }
    }
}

impl<O: Ops> BackwardPass<'_, O> {
    /// From the gradient of the block's output to that of the stream after attention.
    fn feed_forward(
        &mut self,
        saved: &mut BlockActivations<'_, O::Element>,
        scratch: &mut Scratch<O::Element>,
    ) -> Result<(), Error> {
        let BlockActivations { middle, normed2, expanded, hidden, stats2, .. } = saved;
        let Scratch { normed, branch, gradient, hidden: shared_hidden, wide, .. } = scratch;
        let mut dhidden = wide.view_mut().slice(0..self.size.hidden());
        let dy = gradient.view();
        let dexpanded = match self.size.activation {
            Activation::Gelu => {
                let value = hidden.as_ref().map(ViewMut::as_view);
                let input = LinearInput::Gelu { before: expanded.reborrow(), value };
                self.linear(Linear::Contract, dhidden.reborrow(), dy, input)?;
                dhidden.into_view()
            }
            Activation::SwiGlu => {
                let work = || work::elementwise::<O::Element>(5, self.size.hidden());
                if !self.size.saves_outputs {
                    self.ops.time((Role::Activation, Kind::Recompute), work, |ops| {
                        ops.recompute_swiglu(shared_hidden.view_mut(), expanded.reborrow())
                    })?;
                }
                let input = LinearInput::Saved(place(hidden, shared_hidden).into_view());
                self.linear(Linear::Contract, dhidden.reborrow(), dy, input)?;
                self.ops.time((Role::Activation, Kind::Backward), work, |ops| {
                    ops.swiglu_backward(expanded.reborrow(), dhidden.as_view())
                })?;
                expanded.as_view()
            }
        };
        let norm = &self.weights.ranges.norm2;
        let normed = place(normed2, normed);
        let normed = self.normed(norm, normed, stats2.reborrow(), middle.as_view())?;
        let saved = NormSaved { input: middle.as_view(), stats: stats2.as_view() };
        let input = LinearInput::Saved(normed);
        self.linear(Linear::Expand, branch.view_mut(), dexpanded, input)?;
        self.norm(norm, gradient.view_mut(), branch.view(), saved)
    }

    /// From the gradient of the stream after attention to that of the block's input.
    fn attention(
        &mut self,
        saved: &mut BlockActivations<'_, O::Element>,
        scratch: &mut Scratch<O::Element>,
    ) -> Result<(), Error> {
        let BlockActivations { input, normed1, qkv, attention, log_sums, stats1, .. } = saved;
        let Scratch { normed, branch, gradient, wide, .. } = scratch;
        let size = self.size;
        let mut dqkv = wide.view_mut().slice(0..size.rows * size.qkv());
        let output = LinearInput::Saved(attention.as_view());
        self.linear(Linear::AttentionOut, branch.view_mut(), gradient.view(), output)?;
        let saved = AttentionSaved {
            qkv: qkv.as_view(),
            output: attention.as_view(),
            log_sums: log_sums.as_view(),
        };
        let work = || work::attention_backward::<O::Element>(&size.attention);
        self.ops.time((Role::Attention, Kind::Backward), work, |ops| {
            ops.attention_backward(dqkv.reborrow(), branch.view(), saved)
        })?;
        if size.has_rope() {
            let work = || size.rope_work::<O::Element>();
            self.ops.time((Role::Rope, Kind::Backward), work, |ops| {
                ops.rope(dqkv.reborrow(), Direction::Backward)
            })?;
        }
        let norm = &self.weights.ranges.norm1;
        let normed = self.normed(norm, place(normed1, normed), stats1.reborrow(), *input)?;
        let saved = NormSaved { input: *input, stats: stats1.as_view() };
        let input = LinearInput::Saved(normed);
        self.linear(Linear::AttentionIn, branch.view_mut(), dqkv.as_view(), input)?;
        self.norm(norm, gradient.view_mut(), branch.view(), saved)
    }

    /// All gradients of a linear layer. That of its input comes first, because its product may
    /// compute the input that the others read.
    fn linear(
        &mut self,
        linear: Linear,
        dx: ViewMut<'_, O::Element>,
        dy: View<'_, O::Element>,
        mut input: LinearInput<'_, O::Element>,
    ) -> Result<(), Error> {
        let Self { size, weights, ops, gradients, sums } = self;
        let shape = size.linear(linear);
        let role = linear.role();
        let ranges = weights.ranges.linear(linear);
        let weight = ranges.of(weights.segment).weight;
        let before_gelu = input.before_gelu();
        let matrices = match before_gelu {
            None => 0,
            Some(_) if size.saves_outputs => 1,
            Some(_) => 2,
        };
        let work = || work::linear_input::<O::Element>(shape, matrices);
        ops.time((role, Kind::Input), work, |ops| {
            ops.linear_input(linear, dx, dy, weight, before_gelu)
        })?;
        let gradients = ranges.of_mut(gradients.reborrow());
        let work = || work::linear_weight::<O::Element>(shape, *sums);
        ops.time((role, Kind::Weight), work, |ops| {
            ops.linear_weight(linear, gradients.weight, dy, input.value(), *sums)
        })?;
        let Some(dbias) = gradients.bias else { return Ok(()) };
        let work = || work::linear_bias::<O::Element>(shape);
        ops.time((role, Kind::Bias), work, |ops| ops.linear_bias(linear, dbias, dy, *sums))
    }

    /// The output of a norm: recomputed in its place unless it was saved there.
    fn normed<'a>(
        &mut self,
        ranges: &AffineRanges,
        mut place: ViewMut<'a, O::Element>,
        stats: ViewMut<'_, Wide<O>>,
        x: View<'_, O::Element>,
    ) -> Result<View<'a, O::Element>, Error> {
        if !self.size.saves_outputs {
            let parameters = ranges.of(self.weights.segment);
            let work = || self.size.norm_work::<O::Element>(false);
            self.ops.time((Role::Norm, Kind::Recompute), work, |ops| {
                ops.recompute_norm(place.reborrow(), stats, x, parameters)
            })?;
        }
        Ok(place.into_view())
    }

    /// All gradients of a norm; `dx` is added to.
    fn norm(
        &mut self,
        ranges: &AffineRanges,
        dx: ViewMut<'_, O::Element>,
        dy: View<'_, O::Element>,
        saved: NormSaved<'_, O::Element>,
    ) -> Result<(), Error> {
        let weight = ranges.of(self.weights.segment).weight;
        let operands = NormBackward { dx, accumulate: true, dy, saved, weight };
        let gradients = ranges.of_mut(self.gradients.reborrow());
        let work = || self.size.norm_work::<O::Element>(true);
        self.ops.time((Role::Norm, Kind::Backward), work, |ops| {
            ops.norm_backward(operands, gradients, self.sums)
        })
    }
}
