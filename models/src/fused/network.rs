//! Forward and backward of the whole model, generic over the element: f32 and bf16 train, f64 checks.

use super::activations::{Kept, Scratch};
use super::block;
use super::places::Places;
use crate::ops::matmul::Sums;
use crate::ops::{self, Element, attention, cross_entropy, embedding, layer_norm};
use crate::{Batch, ModelConfig, Pass};

/// [`crate::StepSink`] for gradients of any wide type.
pub(super) trait Sink<T> {
    /// The gradient of a segment, to be accumulated into.
    fn gradient(&mut self, segment: usize) -> &mut [T];
    /// The gradient of this segment is final for this micro-batch.
    fn complete(&mut self, segment: usize);
    /// The engine goes over to this pass.
    fn enter(&mut self, pass: Pass);
}

/// Every dimension that buffers depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// N = B T.
    pub(super) rows: usize,
    /// B, T, H and D.
    pub(super) attention: attention::Shape,
    /// C.
    pub(super) width: usize,
    /// F.
    pub(super) feed_forward: usize,
    /// V.
    pub(super) vocabulary: usize,
    /// L.
    pub(super) layers: usize,
    /// Threads that work is divided for.
    pub(super) threads: usize,
}

impl Size {
    pub(super) fn new(
        config: &ModelConfig,
        sequences: usize,
        tokens: usize,
        threads: usize,
    ) -> Self {
        let attention = attention::Shape {
            sequences,
            tokens,
            heads: config.heads,
            key_value_heads: config.heads,
            head_width: config.head_width(),
        };
        Self {
            rows: sequences * tokens,
            attention,
            width: config.width,
            feed_forward: config.feed_forward,
            vocabulary: config.vocabulary,
            layers: config.layers,
            threads,
        }
    }

    /// Columns of the widest gradient in a block.
    pub(super) fn wide(&self) -> usize {
        self.feed_forward.max(3 * self.width)
    }

    /// Tokens whose logits exist at one time.
    pub(super) fn chunk_tokens<E: Element>(&self) -> usize {
        cross_entropy::chunk_tokens::<E>(self.rows, self.vocabulary)
    }
}

/// The model with its buffers.
pub(super) struct Network<E: Element> {
    size: Size,
    places: Places,
    kept: Kept<E>,
    scratch: Scratch<E>,
}

impl<E: Element> Network<E> {
    pub(super) fn new(size: Size, places: Places) -> Self {
        Self { size, places, kept: Kept::new(&size), scratch: Scratch::new(&size) }
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// The sum of the losses of a batch; adds the gradient of `scale` times it to the sink's.
    pub(super) fn train(
        &mut self,
        weights: &[E],
        batch: Batch<'_>,
        scale: E::Wide,
        sink: &mut impl Sink<E::Wide>,
    ) -> f64 {
        sink.enter(Pass::Forward);
        self.forward(weights, batch.inputs);
        let loss = self.head(weights, batch.targets, scale, sink);
        sink.enter(Pass::Backward);
        self.final_norm(weights, sink);
        for layer in (0..self.size.layers).rev() {
            let places = &self.places.blocks[layer];
            let kept = self.kept.block(layer, &self.size);
            let gradients = sink.gradient(places.segment);
            block::backward(&self.size, places, weights, gradients, kept, &mut self.scratch);
            sink.complete(places.segment);
        }
        let places = &self.places.embeddings;
        let (tokens, positions) = places.of_segment(sink.gradient(places.segment));
        let shape = (self.size.attention.tokens, self.size.width);
        embedding::backward(tokens, positions, &self.scratch.gradient, batch.inputs, shape);
        sink.complete(places.segment);
        loss
    }

    /// The sum of the losses of a batch.
    pub(super) fn evaluate(&mut self, weights: &[E], batch: Batch<'_>) -> f64 {
        self.forward(weights, batch.inputs);
        let table = &weights[self.places.embeddings.tokens.clone()];
        let (chunk, width) = (self.size.chunk_tokens::<E>(), self.size.width);
        let Scratch { normed, head, matmul, .. } = &mut self.scratch;
        let chunks = normed.chunks(chunk * width).zip(batch.targets.chunks(chunk));
        let inputs = |(hidden, targets)| cross_entropy::Inputs { hidden, table, targets, width };
        chunks.map(inputs).map(|inputs| cross_entropy::forward(inputs, head, matmul)).sum()
    }

    /// From tokens to the output of the final norm, in `scratch.normed`.
    fn forward(&mut self, weights: &[E], tokens: &[u32]) {
        let Self { size, places, kept, scratch } = self;
        assert_eq!(tokens.len(), size.rows, "a batch of B x T tokens");
        let stream = size.rows * size.width;
        let token_table = &weights[places.embeddings.tokens.clone()];
        let position_table = &weights[places.embeddings.positions.clone()];
        let shape = (size.attention.tokens, size.width);
        let input = &mut kept.streams[..stream];
        embedding::forward(input, tokens, token_table, position_table, shape);
        for (layer, places) in places.blocks.iter().enumerate() {
            block::forward(size, places, weights, kept.block(layer, size), scratch);
        }
        let (weight, bias) = places.final_norm.of(weights);
        let norm = layer_norm::Parameters { weight, bias };
        let stats = &mut kept.stats[2 * size.layers * size.rows..];
        let input = &kept.streams[size.layers * stream..];
        layer_norm::forward(&mut scratch.normed, stats, input, norm);
    }

    /// Loss and gradient of the tied head, chunk by chunk; that of its input in `scratch.branch`.
    fn head(
        &mut self,
        weights: &[E],
        targets: &[u32],
        scale: E::Wide,
        sink: &mut impl Sink<E::Wide>,
    ) -> f64 {
        assert_eq!(targets.len(), self.size.rows, "a batch of B x T targets");
        let places = &self.places.embeddings;
        let table = &weights[places.tokens.clone()];
        let (chunk, width) = (self.size.chunk_tokens::<E>(), self.size.width);
        let Scratch { normed, branch, head, matmul, .. } = &mut self.scratch;
        let hidden = normed.chunks(chunk * width).zip(branch.chunks_mut(chunk * width));
        let mut loss = 0.0;
        for ((hidden, dhidden), targets) in hidden.zip(targets.chunks(chunk)) {
            let inputs = cross_entropy::Inputs { hidden, table, targets, width };
            sink.enter(Pass::Forward);
            loss += cross_entropy::forward(inputs, head, matmul);
            sink.enter(Pass::Backward);
            let (dtable, _) = places.of_segment(sink.gradient(places.segment));
            let dtable = (dtable, Sums::Add);
            cross_entropy::backward(dhidden, dtable, scale, inputs, head, matmul);
        }
        loss
    }

    /// The final norm's backward: starts the gradient of the stream.
    fn final_norm(&mut self, weights: &[E], sink: &mut impl Sink<E::Wide>) {
        let Self { size, places, kept, scratch } = self;
        let (weight, _) = places.final_norm.of(weights);
        let segment = sink.gradient(places.final_norm_segment);
        let (dweight, dbias) = places.final_norm.of_segment(segment);
        let gradients = layer_norm::Gradients { weight: dweight, bias: dbias };
        let stats = &kept.stats[2 * size.layers * size.rows..];
        let input = &kept.streams[size.layers * size.rows * size.width..];
        ops::clear(&mut scratch.gradient);
        let (dx, dy) = (&mut scratch.gradient, &mut scratch.branch);
        layer_norm::backward(dx, gradients, dy, stats, input, weight);
        sink.complete(places.final_norm_segment);
    }
}
