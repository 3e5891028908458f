//! One GPT block: x = x + attention(norm1(x)); x = x + feed-forward(norm2(x)).

use super::activations::{KeptBlock, Scratch};
use super::network::Size;
use super::places::{BlockPlaces, Pair};
use crate::ops::matmul::{self, Epilogue, Shape, Sums};
use crate::ops::{Element, attention, gelu, layer_norm};

impl Size {
    fn linear(&self, inputs: usize, outputs: usize) -> Shape {
        Shape { rows: self.rows, inputs, outputs }
    }
}

/// Writes the block's output and everything it keeps.
pub(super) fn forward<E: Element>(
    size: &Size,
    places: &BlockPlaces,
    weights: &[E],
    kept: KeptBlock<'_, E>,
    scratch: &mut Scratch<E>,
) {
    let (width, feed_forward) = (size.width, size.feed_forward);
    let Scratch { normed, hidden, matmul: packs, attention: blocks, .. } = scratch;
    let with = |pair: &Pair| pair.of(weights);

    layer_norm::forward(normed, kept.stats1, kept.input, norm(&places.norm1, weights));
    let shape = size.linear(width, 3 * width);
    linear(kept.qkv, normed, with(&places.attention_in), Epilogue::Store, shape, packs);
    attention::forward(kept.attention, kept.log_sums, kept.qkv, size.attention, blocks);
    let (shape, add) = (size.linear(width, width), Epilogue::Residual(kept.input));
    linear(kept.middle, kept.attention, with(&places.attention_out), add, shape, packs);

    layer_norm::forward(normed, kept.stats2, kept.middle, norm(&places.norm2, weights));
    let (shape, gelu) = (size.linear(width, feed_forward), Epilogue::Gelu(hidden));
    linear(kept.expanded, normed, with(&places.expand), gelu, shape, packs);
    let (shape, add) = (size.linear(feed_forward, width), Epilogue::Residual(kept.middle));
    linear(kept.output, hidden, with(&places.contract), add, shape, packs);
}

fn linear<E: Element>(
    y: &mut [E],
    x: &[E],
    (weight, bias): (&[E], &[E]),
    epilogue: Epilogue<'_, E>,
    shape: Shape,
    packs: &mut matmul::Workspace<E>,
) {
    matmul::forward(y, x, weight, (Some(bias), epilogue), shape, packs);
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
        stats: &[[E::Wide; 2]],
        expanded: &mut [E],
        scratch: &mut Scratch<E>,
    ) {
        let (width, feed_forward) = (self.size.width, self.size.feed_forward);
        let Scratch { normed, branch, gradient, hidden, wide, matmul: packs, .. } = scratch;
        let wide = &mut wide[..self.size.rows * feed_forward];
        let shape = self.size.linear(feed_forward, width);
        gelu::recompute(hidden, expanded);
        let derivative = Some(&*expanded);
        self.linear(&places.contract, (wide, derivative), gradient, hidden, shape, packs);
        layer_norm::apply(normed, stats, input, norm(&places.norm2, self.weights));
        let shape = self.size.linear(width, feed_forward);
        self.linear(&places.expand, (branch, None), wide, normed, shape, packs);
        self.norm(&places.norm2, gradient, branch, stats, input);
    }

    fn attention(
        &mut self,
        places: &BlockPlaces,
        kept: &KeptBlock<'_, E>,
        scratch: &mut Scratch<E>,
    ) {
        let width = self.size.width;
        let Scratch { normed, branch, gradient, wide, matmul: packs, attention, .. } = scratch;
        let wide = &mut wide[..self.size.rows * 3 * width];
        let shape = self.size.linear(width, width);
        let places_out = &places.attention_out;
        self.linear(places_out, (branch, None), gradient, kept.attention, shape, packs);
        let forward = (&*kept.attention, &*kept.log_sums);
        let shape = self.size.attention;
        attention::backward(wide, branch, kept.qkv, forward, shape, attention);
        layer_norm::apply(normed, kept.stats1, kept.input, norm(&places.norm1, self.weights));
        let shape = self.size.linear(width, 3 * width);
        self.linear(&places.attention_in, (branch, None), wide, normed, shape, packs);
        self.norm(&places.norm1, gradient, branch, kept.stats1, kept.input);
    }

    /// All three gradients of a linear layer; that of its input times a factor, where there is one.
    fn linear(
        &mut self,
        pair: &Pair,
        (dx, factor): (&mut [E], Option<&[E]>),
        dy: &[E],
        x: &[E],
        shape: Shape,
        packs: &mut matmul::Workspace<E>,
    ) {
        let (dweight, dbias) = pair.of_segment(self.gradients);
        matmul::backward_weight(dweight, dy, x, Sums::Add, shape, packs);
        matmul::backward_bias(dbias, dy, Sums::Add);
        matmul::backward_input(dx, dy, pair.of(self.weights).0, factor, shape, packs);
    }

    /// All three gradients of a norm; `dx` is added to.
    fn norm(&mut self, pair: &Pair, dx: &mut [E], dy: &[E], stats: &[[E::Wide; 2]], x: &[E]) {
        let (weight, bias) = pair.of_segment(self.gradients);
        let gradients = layer_norm::Gradients { weight, bias };
        layer_norm::backward(dx, gradients, dy, stats, x, pair.of(self.weights).0);
    }
}

fn norm<'a, E>(pair: &Pair, weights: &'a [E]) -> layer_norm::Parameters<'a, E> {
    let (weight, bias) = pair.of(weights);
    layer_norm::Parameters { weight, bias }
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
    let size = Size::new(config, sequences, tokens, 1);
    let places = &super::places::Places::new(layout, config).blocks[0];
    let mut kept = super::activations::Kept::new(&size);
    let mut scratch = Scratch::new(&size);
    kept.streams[..x.len()].copy_from_slice(x);
    forward(&size, places, weights, kept.block(0, &size), &mut scratch);
    let output = kept.block(0, &size).output.to_vec();
    scratch.gradient.copy_from_slice(dy);
    let mut gradients = vec![E::Wide::ZERO; layout.segments()[places.segment].range.len()];
    backward(&size, places, weights, &mut gradients, kept.block(0, &size), &mut scratch);
    Alone { output, dx: scratch.gradient, gradients }
}
