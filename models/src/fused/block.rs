//! One block: x = x + attention(norm1(x)); x = x + feed-forward(norm2(x)).

use super::activations::{KeptBlock, Scratch, Tools};
use super::norm::Parameters;
use super::packed::PackedBlock;
use super::places::{Affine, BlockPlaces};
use super::size::{Activation, Linear, Size};
use crate::meter::{Kind, Role};
use crate::ops::matmul::{self, Epilogue, Sums, Weight};
use crate::ops::{Element, attention, rope, swiglu, work};

/// The weights of a block.
pub(super) struct BlockWeights<'a, E: Element> {
    pub(super) places: &'a BlockPlaces,
    /// Those of the block's segment.
    pub(super) segment: &'a [E],
    /// Where those of products stay packed.
    pub(super) packed: Option<&'a mut PackedBlock<E>>,
}

impl<'a, E: Element> BlockWeights<'a, E> {
    fn norm(&self, place: &Affine) -> Parameters<'a, E> {
        place.of(self.segment)
    }

    /// Weight and bias of a product.
    fn linear(&mut self, linear: Linear) -> (Weight<'_, E>, Option<&'a [E]>) {
        let (rows, bias) = self.places.linear(linear).of(self.segment);
        let packed = self.packed.as_mut().map(|packed| packed.of(linear));
        (Weight { rows, packed }, bias)
    }
}

/// Writes the block's output and everything it keeps.
pub(super) fn forward<E: Element>(
    size: &Size,
    mut weights: BlockWeights<'_, E>,
    mut kept: KeptBlock<'_, E>,
    scratch: &mut Scratch<E>,
) {
    keep(size, &mut weights, &mut kept, (Kind::Forward, &mut *scratch));
    let Scratch { hidden, tools, .. } = scratch;
    let call = (Linear::Contract, Kind::Forward, size);
    linear(kept.output, hidden, &mut weights, Epilogue::Residual(kept.middle), call, tools);
}

/// Writes everything that the block keeps, and the last product's input: all of forward that
/// backward needs.
pub(super) fn keep<E: Element>(
    size: &Size,
    weights: &mut BlockWeights<'_, E>,
    kept: &mut KeptBlock<'_, E>,
    (kind, scratch): (Kind, &mut Scratch<E>),
) {
    let Scratch { normed, hidden, tools, attention: blocks, rope: tables, .. } = scratch;
    let places = weights.places;
    let call = |linear| (linear, kind, size);
    let norm_work = || size.norm_work::<E>(false);

    tools.meter.time((Role::Norm, kind), norm_work, || {
        size.norm.forward(normed, kept.stats1, kept.input, weights.norm(&places.norm1));
    });
    linear(kept.qkv, normed, weights, Epilogue::Store, call(Linear::AttentionIn), tools);
    if let Some(tables) = tables {
        tools.meter.time(
            (Role::Rope, kind),
            || size.rope_work::<E>(),
            || {
                rope::forward(kept.qkv, tables, size.rope());
            },
        );
    }
    tools.meter.time(
        (Role::Attention, kind),
        || work::attention::<E>(&size.attention),
        || {
            attention::forward(kept.attention, kept.log_sums, kept.qkv, size.attention, blocks);
        },
    );
    let add = Epilogue::Residual(kept.input);
    linear(kept.middle, kept.attention, weights, add, call(Linear::AttentionOut), tools);

    tools.meter.time((Role::Norm, kind), norm_work, || {
        size.norm.forward(normed, kept.stats2, kept.middle, weights.norm(&places.norm2));
    });
    let (expanded, hidden_len, call) = (&mut *kept.expanded, hidden.len(), call(Linear::Expand));
    match size.activation {
        Activation::Gelu => {
            linear(expanded, normed, weights, Epilogue::Gelu(hidden), call, tools);
        }
        Activation::SwiGlu => {
            linear(expanded, normed, weights, Epilogue::Store, call, tools);
            let work = || work::elementwise::<E>(3, hidden_len);
            tools.meter.time((Role::Activation, kind), work, || {
                swiglu::forward(hidden, expanded, size.feed_forward);
            });
        }
    }
}

fn linear<E: Element>(
    y: &mut [E],
    x: &[E],
    weights: &mut BlockWeights<'_, E>,
    epilogue: Epilogue<'_, E>,
    (linear, kind, size): (Linear, Kind, &Size),
    Tools { packs, meter, .. }: &mut Tools<E>,
) {
    let (shape, (weight, bias)) = (size.linear(linear), weights.linear(linear));
    let more = usize::from(!matches!(epilogue, Epilogue::Store));
    meter.time(
        (linear.role(), kind),
        || work::linear::<E>(shape, more),
        || matmul::forward(y, x, weight, (bias, epilogue), shape, packs),
    );
}

/// Turns the gradient of the block's output (in `scratch.gradient`) into that of its input, and
/// writes or adds to the gradients of the block's segment. What the block kept is used up.
pub(super) fn backward<E: Element>(
    size: &Size,
    weights: BlockWeights<'_, E>,
    (gradients, sums): (&mut [E::Wide], Sums),
    kept: KeptBlock<'_, E>,
    scratch: &mut Scratch<E>,
) {
    let mut half = Half { size, weights, gradients, sums };
    half.feed_forward(kept.middle, kept.stats2, kept.expanded, scratch);
    half.attention(&kept, scratch);
}

/// What a linear layer read in forward.
enum Saw<'a, E> {
    /// As it was kept, or made again.
    Input(&'a [E]),
    /// What it was GELU of: the product that makes the input's gradient puts GELU in its place.
    BeforeGelu(&'a mut [E]),
}

/// What both halves of a block's backward need.
struct Half<'a, E: Element> {
    size: &'a Size,
    weights: BlockWeights<'a, E>,
    gradients: &'a mut [E::Wide],
    sums: Sums,
}

impl<E: Element> Half<'_, E> {
    fn feed_forward(
        &mut self,
        input: &[E],
        stats: &[E::Wide],
        expanded: &mut [E],
        scratch: &mut Scratch<E>,
    ) {
        let (size, place) = (self.size, &self.weights.places.norm2);
        let Scratch { normed, branch, gradient, hidden, wide, tools, .. } = scratch;
        let dhidden = &mut wide[..size.rows * size.feed_forward];
        let moved = |matrices| work::elementwise::<E>(matrices, size.rows * size.feed_forward);
        let activation = |kind| (Role::Activation, kind);
        let dexpanded: &[E] = match size.activation {
            Activation::Gelu => {
                self.linear(Linear::Contract, dhidden, gradient, Saw::BeforeGelu(expanded), tools);
                dhidden
            }
            Activation::SwiGlu => {
                tools.meter.time(
                    activation(Kind::Again),
                    || moved(5),
                    || {
                        swiglu::recompute(hidden, expanded, size.feed_forward);
                    },
                );
                self.linear(Linear::Contract, dhidden, gradient, Saw::Input(hidden), tools);
                tools.meter.time(
                    activation(Kind::Backward),
                    || moved(5),
                    || {
                        swiglu::backward(expanded, dhidden, size.feed_forward);
                    },
                );
                expanded
            }
        };
        self.norm_again(place, normed, (stats, input), tools);
        self.linear(Linear::Expand, branch, dexpanded, Saw::Input(normed), tools);
        self.norm(place, gradient, branch, (stats, input), tools);
    }

    fn attention(&mut self, kept: &KeptBlock<'_, E>, scratch: &mut Scratch<E>) {
        let (size, place) = (self.size, &self.weights.places.norm1);
        let Scratch { normed, branch, gradient, wide, tools, .. } = scratch;
        let dqkv = &mut wide[..size.rows * size.qkv()];
        self.linear(Linear::AttentionOut, branch, gradient, Saw::Input(kept.attention), tools);
        let forward = (&*kept.attention, &*kept.log_sums);
        let blocks = &mut scratch.attention;
        let work = || work::attention_backward::<E>(&size.attention);
        tools.meter.time((Role::Attention, Kind::Backward), work, || {
            attention::backward(dqkv, branch, kept.qkv, forward, size.attention, blocks);
        });
        if let Some(tables) = &scratch.rope {
            let op = (Role::Rope, Kind::Backward);
            let work = || size.rope_work::<E>();
            tools.meter.time(op, work, || rope::backward(dqkv, tables, size.rope()));
        }
        let saw = (&*kept.stats1, kept.input);
        self.norm_again(place, normed, saw, tools);
        self.linear(Linear::AttentionIn, branch, dqkv, Saw::Input(normed), tools);
        self.norm(place, gradient, branch, saw, tools);
    }

    /// All gradients of a linear layer. That of its input comes first: it may make the input again.
    fn linear(
        &mut self,
        linear: Linear,
        dx: &mut [E],
        dy: &[E],
        mut saw: Saw<'_, E>,
        Tools { packs, meter, .. }: &mut Tools<E>,
    ) {
        let (shape, role, sums) = (self.size.linear(linear), linear.role(), self.sums);
        let (weight, _) = self.weights.linear(linear);
        let before = match &mut saw {
            Saw::Input(_) => None,
            Saw::BeforeGelu(before) => Some(&mut **before),
        };
        let more = if before.is_some() { 2 } else { 0 };
        let work = || work::linear_input::<E>(shape, more);
        meter.time((role, Kind::Input), work, || {
            matmul::backward_input(dx, dy, weight, before, shape, packs);
        });
        let x = match saw {
            Saw::Input(x) => x,
            Saw::BeforeGelu(x) => x,
        };
        let (dweight, dbias) = self.weights.places.linear(linear).of_mut(self.gradients);
        let work = || work::linear_weight::<E>(shape, sums);
        meter.time((role, Kind::Weight), work, || {
            matmul::backward_weight(dweight, dy, x, sums, shape, packs);
        });
        if let Some(dbias) = dbias {
            let work = || work::linear_bias::<E>(shape);
            meter.time((role, Kind::Bias), work, || matmul::backward_bias(dbias, dy, sums));
        }
    }

    /// A norm's output again, from what it kept and read.
    fn norm_again(
        &self,
        place: &Affine,
        y: &mut [E],
        (stats, x): (&[E::Wide], &[E]),
        tools: &mut Tools<E>,
    ) {
        let work = || self.size.norm_work::<E>(false);
        tools.meter.time((Role::Norm, Kind::Again), work, || {
            self.size.norm.apply(y, stats, x, self.weights.norm(place));
        });
    }

    /// All gradients of a norm, from what it kept and read; `dx` is added to.
    fn norm(
        &mut self,
        place: &Affine,
        dx: &mut [E],
        dy: &[E],
        saw: (&[E::Wide], &[E]),
        tools: &mut Tools<E>,
    ) {
        let gradients = (place.of_mut(self.gradients), self.sums);
        let (size, (weight, _)) = (self.size, self.weights.norm(place));
        let Tools { meter, row_sums, .. } = tools;
        meter.time(
            (Role::Norm, Kind::Backward),
            || size.norm_work::<E>(true),
            || size.norm.backward(dx, gradients, dy, saw, weight, row_sums),
        );
    }
}

/// What one block alone computes.
#[cfg(test)]
pub(crate) struct Alone<E: Element> {
    /// Output (M, C).
    pub(crate) output: Vec<E>,
    /// Gradient of the input (M, C).
    pub(crate) dx: Vec<E>,
    /// Gradients of the block's segment.
    pub(crate) gradients: Vec<E::Wide>,
}

/// Runs the first block of a model alone, given all weights: forward on `x` (M, C), backward on
/// `dy` (M, C).
#[cfg(test)]
pub(crate) fn block_alone<E: Element>(
    config: &crate::ModelConfig,
    layout: &crate::Layout,
    (sequences, tokens): (usize, usize),
    weights: &[E],
    x: &[E],
    dy: &[E],
) -> Alone<E> {
    let size = Size::new(config, (sequences, tokens), crate::workload::Compute::F32.into(), 1);
    let places = &super::places::Places::new(layout, config).blocks[0];
    let segment = &weights[places.segment.range.clone()];
    let weights = || BlockWeights { places, segment, packed: None };
    let mut kept = super::activations::Kept::new(&size);
    let mut scratch = Scratch::new(config, &size);
    kept.streams[..x.len()].copy_from_slice(x);
    forward(&size, weights(), kept.block(0, &size), &mut scratch);
    let output = kept.block(0, &size).output.to_vec();
    scratch.gradient.copy_from_slice(dy);
    let mut gradients = vec![E::Wide::ZERO; places.segment.range.len()];
    let sums = (&mut gradients[..], Sums::Write);
    backward(&size, weights(), sums, kept.block(0, &size), &mut scratch);
    Alone { output, dx: scratch.gradient, gradients }
}
