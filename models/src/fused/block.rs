//! One GPT block: x = x + attention(norm1(x)); x = x + feed-forward(norm2(x)).

use super::activations::{KeptBlock, Scratch};
use super::network::Size;
use super::places::{BlockPlaces, Pair};
use crate::ops::matmul::{self, Epilogue, Shape, Sums};
use crate::ops::{Float, attention, gelu, layer_norm, residual};

impl Size {
    fn linear(&self, inputs: usize, outputs: usize) -> Shape {
        Shape { rows: self.rows, inputs, outputs }
    }
}

/// Writes the block's output and everything it keeps.
pub(super) fn forward<T: Float>(
    size: &Size,
    places: &BlockPlaces,
    weights: &[T],
    kept: KeptBlock<'_, T>,
    scratch: &mut Scratch<T>,
) {
    let (width, feed_forward) = (size.width, size.feed_forward);
    let Scratch { normed, branch, hidden, matmul: packs, attention: blocks, .. } = scratch;
    let linear = |y: &mut [T], x: &[T], pair: &Pair, shape, packs: &mut _| {
        let (weight, bias) = pair.of(weights);
        matmul::forward(y, x, weight, (Some(bias), Epilogue::Store), shape, packs);
    };

    layer_norm::forward(normed, kept.stats1, kept.input, norm(&places.norm1, weights));
    linear(kept.qkv, normed, &places.attention_in, size.linear(width, 3 * width), packs);
    attention::forward(kept.attention, kept.log_sums, kept.qkv, size.attention, blocks);
    linear(branch, kept.attention, &places.attention_out, size.linear(width, width), packs);
    residual::forward(kept.middle, kept.input, branch);

    layer_norm::forward(normed, kept.stats2, kept.middle, norm(&places.norm2, weights));
    linear(kept.expanded, normed, &places.expand, size.linear(width, feed_forward), packs);
    gelu::forward(hidden, kept.expanded);
    linear(branch, hidden, &places.contract, size.linear(feed_forward, width), packs);
    residual::forward(kept.output, kept.middle, branch);
}

/// Turns the gradient of the block's output (in `scratch.gradient`) into that of its input, and
/// adds to the gradients of the block's segment. What the block kept is used up.
pub(super) fn backward<T: Float>(
    size: &Size,
    places: &BlockPlaces,
    weights: &[T],
    gradients: &mut [T],
    kept: KeptBlock<'_, T>,
    scratch: &mut Scratch<T>,
) {
    let mut half = Half { size, weights, gradients };
    half.feed_forward(places, kept.middle, kept.stats2, kept.expanded, scratch);
    half.attention(places, &kept, scratch);
}

/// What both halves of a block's backward need.
struct Half<'a, T> {
    size: &'a Size,
    weights: &'a [T],
    gradients: &'a mut [T],
}

impl<T: Float> Half<'_, T> {
    fn feed_forward(
        &mut self,
        places: &BlockPlaces,
        input: &[T],
        stats: &[[T; 2]],
        expanded: &mut [T],
        scratch: &mut Scratch<T>,
    ) {
        let (width, feed_forward) = (self.size.width, self.size.feed_forward);
        let Scratch { normed, branch, gradient, hidden, wide, matmul: packs, .. } = scratch;
        let wide = &mut wide[..self.size.rows * feed_forward];
        let shape = self.size.linear(feed_forward, width);
        gelu::recompute(hidden, expanded);
        self.linear(&places.contract, wide, gradient, hidden, shape, packs);
        gelu::backward(wide, expanded);
        layer_norm::apply(normed, stats, input, norm(&places.norm2, self.weights));
        let shape = self.size.linear(width, feed_forward);
        self.linear(&places.expand, branch, wide, normed, shape, packs);
        self.norm(&places.norm2, gradient, branch, stats, input);
    }

    fn attention(
        &mut self,
        places: &BlockPlaces,
        kept: &KeptBlock<'_, T>,
        scratch: &mut Scratch<T>,
    ) {
        let width = self.size.width;
        let Scratch { normed, branch, gradient, wide, matmul: packs, attention, .. } = scratch;
        let wide = &mut wide[..self.size.rows * 3 * width];
        let shape = self.size.linear(width, width);
        self.linear(&places.attention_out, branch, gradient, kept.attention, shape, packs);
        let forward = (&*kept.attention, &*kept.log_sums);
        let shape = self.size.attention;
        attention::backward(wide, branch, kept.qkv, forward, shape, attention);
        layer_norm::apply(normed, kept.stats1, kept.input, norm(&places.norm1, self.weights));
        let shape = self.size.linear(width, 3 * width);
        self.linear(&places.attention_in, branch, wide, normed, shape, packs);
        self.norm(&places.norm1, gradient, branch, kept.stats1, kept.input);
    }

    /// All three gradients of a linear layer.
    fn linear(
        &mut self,
        pair: &Pair,
        dx: &mut [T],
        dy: &[T],
        x: &[T],
        shape: Shape,
        packs: &mut matmul::Workspace<T>,
    ) {
        let (dweight, dbias) = pair.of_segment(self.gradients);
        matmul::backward_weight(dweight, dy, x, Sums::Add, shape, packs);
        matmul::backward_bias(dbias, dy, Sums::Add);
        matmul::backward_input(dx, dy, pair.of(self.weights).0, None, shape, packs);
    }

    /// All three gradients of a norm; `dx` is added to.
    fn norm(&mut self, pair: &Pair, dx: &mut [T], dy: &mut [T], stats: &[[T; 2]], x: &[T]) {
        let (weight, bias) = pair.of_segment(self.gradients);
        let gradients = layer_norm::Gradients { weight, bias };
        layer_norm::backward(dx, gradients, dy, stats, x, pair.of(self.weights).0);
    }
}

fn norm<'a, T>(pair: &Pair, weights: &'a [T]) -> layer_norm::Parameters<'a, T> {
    let (weight, bias) = pair.of(weights);
    layer_norm::Parameters { weight, bias }
}

/// What one block alone computes.
#[cfg(test)]
pub(crate) struct Alone<T> {
    /// Output (M, C).
    pub(crate) output: Vec<T>,
    /// Gradient of the input (M, C).
    pub(crate) dx: Vec<T>,
    /// Gradients of the block's segment.
    pub(crate) gradients: Vec<T>,
}

/// Runs the first block of a model alone: forward on `x` (M, C), backward on `dy` (M, C).
#[cfg(test)]
pub(crate) fn block_alone<T: Float>(
    config: &crate::ModelConfig,
    layout: &crate::Layout,
    (sequences, tokens): (usize, usize),
    weights: &[T],
    x: &[T],
    dy: &[T],
) -> Alone<T> {
    let size = Size::new(config, sequences, tokens, 1);
    let places = &super::places::Places::new(layout, config).blocks[0];
    let mut kept = super::activations::Kept::new(&size);
    let mut scratch = Scratch::new(&size);
    kept.streams[..x.len()].copy_from_slice(x);
    forward(&size, places, weights, kept.block(0, &size), &mut scratch);
    let output = kept.block(0, &size).output.to_vec();
    scratch.gradient.copy_from_slice(dy);
    let mut gradients = vec![T::ZERO; layout.segments()[places.segment].range.len()];
    backward(&size, places, weights, &mut gradients, kept.block(0, &size), &mut scratch);
    Alone { output, dx: scratch.gradient, gradients }
}
