//! One GPT block: x = x + attention(norm1(x)); x = x + feed-forward(norm2(x)).

use super::activations::{KeptBlock, Scratch};
use super::norm::Parameters;
use super::places::{Affine, BlockPlaces};
use super::size::{Activation, Size};
use crate::ops::matmul::{self, Epilogue, Shape, Sums};
use crate::ops::{Element, attention, gelu, rope, swiglu};

/// Writes the block's output and everything it keeps.
pub(super) fn forward<E: Element>(
    size: &Size,
    places: &BlockPlaces,
    weights: &[E],
    mut kept: KeptBlock<'_, E>,
    scratch: &mut Scratch<E>,
) {
    keep(size, places, weights, &mut kept, scratch);
    let Scratch { hidden, matmul: packs, .. } = scratch;
    let contract = places.contract.of(weights);
    let (shape, add) =
        (size.linear(size.feed_forward, size.width), Epilogue::Residual(kept.middle));
    linear(kept.output, hidden, contract, add, shape, packs);
}

/// Writes everything that the block keeps, and the last product's input: all of forward that
/// backward needs.
pub(super) fn keep<E: Element>(
    size: &Size,
    places: &BlockPlaces,
    weights: &[E],
    kept: &mut KeptBlock<'_, E>,
    scratch: &mut Scratch<E>,
) {
    let (width, feed_forward) = (size.width, size.feed_forward);
    let Scratch { normed, hidden, matmul: packs, attention: blocks, rope: tables, .. } = scratch;
    let of = |place: &Affine| place.of(weights);

    size.norm.forward(normed, kept.stats1, kept.input, of(&places.norm1));
    let shape = size.linear(width, size.qkv());
    linear(kept.qkv, normed, of(&places.attention_in), Epilogue::Store, shape, packs);
    if let Some(tables) = tables {
        rope::forward(kept.qkv, tables, size.rope());
    }
    attention::forward(kept.attention, kept.log_sums, kept.qkv, size.attention, blocks);
    let (shape, add) = (size.linear(width, width), Epilogue::Residual(kept.input));
    linear(kept.middle, kept.attention, of(&places.attention_out), add, shape, packs);

    size.norm.forward(normed, kept.stats2, kept.middle, of(&places.norm2));
    let (expanded, shape) = (&mut *kept.expanded, size.linear(width, size.expanded()));
    match size.activation {
        Activation::Gelu => {
            linear(expanded, normed, of(&places.expand), Epilogue::Gelu(hidden), shape, packs);
        }
        Activation::SwiGlu => {
            linear(expanded, normed, of(&places.expand), Epilogue::Store, shape, packs);
            swiglu::forward(hidden, expanded, feed_forward);
        }
    }
}

fn linear<E: Element>(
    y: &mut [E],
    x: &[E],
    (weight, bias): Parameters<'_, E>,
    epilogue: Epilogue<'_, E>,
    shape: Shape,
    packs: &mut matmul::Workspace<E>,
) {
    matmul::forward(y, x, weight, (bias, epilogue), shape, packs);
}

/// Turns the gradient of the block's output (in `scratch.gradient`) into that of its input, and
/// adds to the gradients of the block's segment. What the block kept is used up.
pub(super) fn backward<E: Element>(
    size: &Size,
    places: &BlockPlaces,
    weights: &[E],
    gradients: &mut [E::Wide],
    kept: KeptBlock<'_, E>,
    scratch: &mut Scratch<E>,
) {
    let mut half = Half { size, weights, gradients };
    half.feed_forward(places, kept.middle, kept.stats2, kept.expanded, scratch);
    half.attention(places, &kept, scratch);
}

/// What both halves of a block's backward need.
struct Half<'a, E: Element> {
    size: &'a Size,
    weights: &'a [E],
    gradients: &'a mut [E::Wide],
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
        let Scratch { normed, branch, gradient, hidden, wide, matmul: packs, .. } = scratch;
        let dhidden = &mut wide[..size.rows * size.feed_forward];
        let shape = size.linear(size.feed_forward, size.width);
        // The derivatives take the place of what they were made from.
        let dexpanded: &[E] = match size.activation {
            Activation::Gelu => {
                gelu::recompute(hidden, expanded);
                let derivative = Some(&*expanded);
                let dx = (&mut *dhidden, derivative);
                self.linear(&places.contract, dx, gradient, hidden, shape, packs);
                dhidden
            }
            Activation::SwiGlu => {
                swiglu::recompute(hidden, expanded, size.feed_forward);
                let dx = (&mut *dhidden, None);
                self.linear(&places.contract, dx, gradient, hidden, shape, packs);
                swiglu::backward(expanded, dhidden, size.feed_forward);
                expanded
            }
        };
        size.norm.apply(normed, stats, input, places.norm2.of(self.weights));
        let shape = size.linear(size.width, size.expanded());
        self.linear(&places.expand, (branch, None), dexpanded, normed, shape, packs);
        self.norm(&places.norm2, gradient, branch, (stats, input));
    }

    fn attention(
        &mut self,
        places: &BlockPlaces,
        kept: &KeptBlock<'_, E>,
        scratch: &mut Scratch<E>,
    ) {
        let size = self.size;
        let Scratch { normed, branch, gradient, wide, matmul: packs, .. } = scratch;
        let dqkv = &mut wide[..size.rows * size.qkv()];
        let shape = size.linear(size.width, size.width);
        let dx = (&mut branch[..], None);
        self.linear(&places.attention_out, dx, gradient, kept.attention, shape, packs);
        let forward = (&*kept.attention, &*kept.log_sums);
        let blocks = &mut scratch.attention;
        attention::backward(dqkv, branch, kept.qkv, forward, size.attention, blocks);
        if let Some(tables) = &scratch.rope {
            rope::backward(dqkv, tables, size.rope());
        }
        size.norm.apply(normed, kept.stats1, kept.input, places.norm1.of(self.weights));
        let shape = size.linear(size.width, size.qkv());
        self.linear(&places.attention_in, (branch, None), dqkv, normed, shape, packs);
        self.norm(&places.norm1, gradient, branch, (kept.stats1, kept.input));
    }

    /// All gradients of a linear layer; that of its input times a factor, where there is one.
    fn linear(
        &mut self,
        place: &Affine,
        (dx, factor): (&mut [E], Option<&[E]>),
        dy: &[E],
        x: &[E],
        shape: Shape,
        packs: &mut matmul::Workspace<E>,
    ) {
        let (dweight, dbias) = place.of_segment(self.gradients);
        matmul::backward_weight(dweight, dy, x, Sums::Add, shape, packs);
        if let Some(dbias) = dbias {
            matmul::backward_bias(dbias, dy, Sums::Add);
        }
        matmul::backward_input(dx, dy, place.of(self.weights).0, factor, shape, packs);
    }

    /// All gradients of a norm, from what it kept and read; `dx` is added to.
    fn norm(&mut self, place: &Affine, dx: &mut [E], dy: &[E], saw: (&[E::Wide], &[E])) {
        let gradients = place.of_segment(self.gradients);
        self.size.norm.backward(dx, gradients, dy, saw, place.of(self.weights).0);
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

/// Runs the first block of a model alone: forward on `x` (M, C), backward on `dy` (M, C).
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
    let mut kept = super::activations::Kept::new(&size);
    let mut scratch = Scratch::new(config, &size);
    kept.streams[..x.len()].copy_from_slice(x);
    forward(&size, places, weights, kept.block(0, &size), &mut scratch);
    let output = kept.block(0, &size).output.to_vec();
    scratch.gradient.copy_from_slice(dy);
    let mut gradients = vec![E::Wide::ZERO; layout.segments()[places.segment].range.len()];
    backward(&size, places, weights, &mut gradients, kept.block(0, &size), &mut scratch);
    Alone { output, dx: scratch.gradient, gradients }
}
