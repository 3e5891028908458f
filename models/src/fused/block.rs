//! One block: x = x + attention(norm1(x)); x = x + feed-forward(norm2(x)).

use super::activations::{KeptBlock, Scratch, Tools};
use super::norm::Parameters;
use super::places::{Affine, BlockPlaces};
use super::size::{Activation, Size};
use crate::meter::{Kind, Op, Role};
use crate::ops::matmul::{self, Epilogue, Shape, Sums};
use crate::ops::{Element, attention, gelu, rope, swiglu, work};

/// Writes the block's output and everything it keeps. `weights`, here and below, are those of the
/// block's segment.
pub(super) fn forward<E: Element>(
    size: &Size,
    places: &BlockPlaces,
    weights: &[E],
    mut kept: KeptBlock<'_, E>,
    scratch: &mut Scratch<E>,
) {
    keep(size, places, weights, &mut kept, (Kind::Forward, &mut *scratch));
    let (op, Scratch { hidden, tools, .. }) = ((Role::Contract, Kind::Forward), scratch);
    let contract = places.contract.of(weights);
    let (shape, add) =
        (size.linear(size.feed_forward, size.width), Epilogue::Residual(kept.middle));
    linear(kept.output, hidden, contract, add, (op, shape), tools);
}

/// Writes everything that the block keeps, and the last product's input: all of forward that
/// backward needs.
pub(super) fn keep<E: Element>(
    size: &Size,
    places: &BlockPlaces,
    weights: &[E],
    kept: &mut KeptBlock<'_, E>,
    (kind, scratch): (Kind, &mut Scratch<E>),
) {
    let (width, feed_forward) = (size.width, size.feed_forward);
    let Scratch { normed, hidden, tools, attention: blocks, rope: tables, .. } = scratch;
    let of = |place: &Affine| place.of(weights);
    let norm_work = || size.norm_work::<E>(false);

    tools.meter.time((Role::Norm, kind), norm_work, || {
        size.norm.forward(normed, kept.stats1, kept.input, of(&places.norm1));
    });
    let call = ((Role::AttentionIn, kind), size.linear(width, size.qkv()));
    linear(kept.qkv, normed, of(&places.attention_in), Epilogue::Store, call, tools);
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
    let call = ((Role::AttentionOut, kind), size.linear(width, width));
    let add = Epilogue::Residual(kept.input);
    linear(kept.middle, kept.attention, of(&places.attention_out), add, call, tools);

    tools.meter.time((Role::Norm, kind), norm_work, || {
        size.norm.forward(normed, kept.stats2, kept.middle, of(&places.norm2));
    });
    let call = ((Role::Expand, kind), size.linear(width, size.expanded()));
    let (expanded, hidden_len) = (&mut *kept.expanded, hidden.len());
    match size.activation {
        Activation::Gelu => {
            linear(expanded, normed, of(&places.expand), Epilogue::Gelu(hidden), call, tools);
        }
        Activation::SwiGlu => {
            linear(expanded, normed, of(&places.expand), Epilogue::Store, call, tools);
            let work = || work::elementwise::<E>(3, hidden_len);
            tools.meter.time((Role::Activation, kind), work, || {
                swiglu::forward(hidden, expanded, feed_forward);
            });
        }
    }
}

fn linear<E: Element>(
    y: &mut [E],
    x: &[E],
    (weight, bias): Parameters<'_, E>,
    epilogue: Epilogue<'_, E>,
    (op, shape): (Op, Shape),
    Tools { packs, meter }: &mut Tools<E>,
) {
    let more = usize::from(!matches!(epilogue, Epilogue::Store));
    meter.time(
        op,
        || work::linear::<E>(shape, more),
        || matmul::forward(y, x, weight, (bias, epilogue), shape, packs),
    );
}

/// Turns the gradient of the block's output (in `scratch.gradient`) into that of its input, and
/// writes or adds to the gradients of the block's segment. What the block kept is used up.
pub(super) fn backward<E: Element>(
    size: &Size,
    places: &BlockPlaces,
    weights: &[E],
    (gradients, sums): (&mut [E::Wide], Sums),
    kept: KeptBlock<'_, E>,
    scratch: &mut Scratch<E>,
) {
    let mut half = Half { size, weights, gradients, sums };
    half.feed_forward(places, kept.middle, kept.stats2, kept.expanded, scratch);
    half.attention(places, &kept, scratch);
}

/// What both halves of a block's backward need.
struct Half<'a, E: Element> {
    size: &'a Size,
    weights: &'a [E],
    gradients: &'a mut [E::Wide],
    sums: Sums,
}

impl<E: Element> Half<'_, E> {
    fn feed_forward(
        &mut self,
        places: &BlockPlaces,
        input: &[E],
        stats: &[E::Wide],
        expanded: &mut [E],
        scratch: &mut Scratch<E>,
    ) {
        let size = self.size;
        let Scratch { normed, branch, gradient, hidden, wide, tools, .. } = scratch;
        let dhidden = &mut wide[..size.rows * size.feed_forward];
        let call = (Role::Contract, size.linear(size.feed_forward, size.width));
        let moved = |matrices| work::elementwise::<E>(matrices, size.rows * size.feed_forward);
        let activation = |kind| (Role::Activation, kind);
        // The derivatives take the place of what they were made from.
        let dexpanded: &[E] = match size.activation {
            Activation::Gelu => {
                let op = activation(Kind::Again);
                tools.meter.time(op, || moved(3), || gelu::recompute(hidden, expanded));
                let derivative = Some(&*expanded);
                let dx = (&mut *dhidden, derivative);
                self.linear(&places.contract, dx, gradient, hidden, call, tools);
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
                let dx = (&mut *dhidden, None);
                self.linear(&places.contract, dx, gradient, hidden, call, tools);
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
        self.norm_again(&places.norm2, normed, (stats, input), tools);
        let call = (Role::Expand, size.linear(size.width, size.expanded()));
        self.linear(&places.expand, (branch, None), dexpanded, normed, call, tools);
        self.norm(&places.norm2, gradient, branch, (stats, input), tools);
    }

    fn attention(
        &mut self,
        places: &BlockPlaces,
        kept: &KeptBlock<'_, E>,
        scratch: &mut Scratch<E>,
    ) {
        let size = self.size;
        let Scratch { normed, branch, gradient, wide, tools, .. } = scratch;
        let dqkv = &mut wide[..size.rows * size.qkv()];
        let call = (Role::AttentionOut, size.linear(size.width, size.width));
        let dx = (&mut branch[..], None);
        self.linear(&places.attention_out, dx, gradient, kept.attention, call, tools);
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
        self.norm_again(&places.norm1, normed, saw, tools);
        let call = (Role::AttentionIn, size.linear(size.width, size.qkv()));
        self.linear(&places.attention_in, (branch, None), dqkv, normed, call, tools);
        self.norm(&places.norm1, gradient, branch, saw, tools);
    }

    /// All gradients of a linear layer; that of its input times a factor, where there is one.
    fn linear(
        &mut self,
        place: &Affine,
        (dx, factor): (&mut [E], Option<&[E]>),
        dy: &[E],
        x: &[E],
        (role, shape): (Role, Shape),
        Tools { packs, meter }: &mut Tools<E>,
    ) {
        let (dweight, dbias) = place.of_mut(self.gradients);
        let sums = self.sums;
        let work = || work::linear_weight::<E>(shape, sums);
        meter.time((role, Kind::Weight), work, || {
            matmul::backward_weight(dweight, dy, x, sums, shape, packs);
        });
        if let Some(dbias) = dbias {
            let work = || work::linear_bias::<E>(shape);
            meter.time((role, Kind::Bias), work, || matmul::backward_bias(dbias, dy, sums));
        }
        let weight = place.of(self.weights).0;
        let work = || work::linear_input::<E>(shape, usize::from(factor.is_some()));
        meter.time((role, Kind::Input), work, || {
            matmul::backward_input(dx, dy, weight, factor, shape, packs);
        });
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
            self.size.norm.apply(y, stats, x, place.of(self.weights));
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
        let (size, weight) = (self.size, place.of(self.weights).0);
        tools.meter.time(
            (Role::Norm, Kind::Backward),
            || size.norm_work::<E>(true),
            || size.norm.backward(dx, gradients, dy, saw, weight),
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
    let size = Size::new(config, (sequences, tokens), false, 1);
    let places = &super::places::Places::new(layout, config).blocks[0];
    let weights = &weights[places.segment.range.clone()];
    let mut kept = super::activations::Kept::new(&size);
    let mut scratch = Scratch::new(config, &size);
    kept.streams[..x.len()].copy_from_slice(x);
    forward(&size, places, weights, kept.block(0, &size), &mut scratch);
    let output = kept.block(0, &size).output.to_vec();
    scratch.gradient.copy_from_slice(dy);
    let mut gradients = vec![E::Wide::ZERO; places.segment.range.len()];
    let sums = (&mut gradients[..], Sums::Write);
    backward(&size, places, weights, sums, kept.block(0, &size), &mut scratch);
    Alone { output, dx: scratch.gradient, gradients }
}
