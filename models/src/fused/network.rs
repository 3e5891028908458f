//! Forward and backward of the whole model, generic over the element: f32 and bf16 train, f64
//! checks.

use std::ops::Range;

use super::activations::{Kept, Scratch, Tools};
use super::block::{self, BlockWeights};
use super::packed::PackedWeights;
use super::places::Places;
use super::size::Size;
use crate::meter::{Kind, Role};
use crate::ops::matmul::Sums;
use crate::ops::{self, Element, cross_entropy, embedding, work};
use crate::{Batch, Error, Meter, ModelConfig, Pass};

/// [`crate::WeightSource`] for weights of any element.
pub(super) trait Source<E> {
    /// The weights of one segment, given by its range in the flat weights.
    fn segment(&mut self, range: &Range<usize>) -> Result<&[E], Error>;
}

/// [`crate::StepSink`] for gradients of any wide type.
pub(super) trait Sink<T> {
    /// The gradient of a segment, to be written or added to.
    fn gradient(&mut self, segment: usize) -> &mut [T];
    /// The gradient of this segment is final for this micro-batch.
    fn complete(&mut self, segment: usize);
    /// The engine goes over to this pass.
    fn enter(&mut self, pass: Pass);
}

/// The model with its buffers.
pub(super) struct Network<E: Element> {
    size: Size,
    places: Places,
    /// Weights that stay packed while they do not change.
    packed: Option<PackedWeights<E>>,
    kept: Kept<E>,
    scratch: Scratch<E>,
}

impl<E: Element> Network<E> {
    pub(super) fn new(config: &ModelConfig, size: Size, places: Places) -> Self {
        let packed = size.pack_weights.then(|| PackedWeights::new(&size));
        Self { size, places, packed, kept: Kept::new(&size), scratch: Scratch::new(config, &size) }
    }

    /// What was packed is of other weights.
    pub(super) fn weights_changed(&mut self) {
        self.packed.iter_mut().for_each(PackedWeights::expire);
        self.scratch.head.expire();
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// Bytes that products took, and those that were planned.
    #[cfg(test)]
    pub(super) fn room_bytes(&self) -> (usize, usize) {
        let products = self.size.products::<E>();
        let planned =
            crate::ops::matmul::Workspace::<E>::planned_bytes(self.size.threads, &products);
        (self.scratch.tools.packs.bytes(), planned)
    }

    pub(super) fn meter(&mut self) -> &mut Meter {
        &mut self.scratch.tools.meter
    }

    /// The sum of the losses of a batch; writes the gradient of `scale` times it to the sink's, or
    /// adds it.
    pub(super) fn train(
        &mut self,
        weights: &mut impl Source<E>,
        batch: Batch<'_>,
        (scale, sums): (E::Wide, Sums),
        sink: &mut impl Sink<E::Wide>,
    ) -> Result<f64, Error> {
        sink.enter(Pass::Forward);
        self.forward(weights, batch.inputs)?;
        let loss = self.head(weights, batch.targets, (scale, sums), sink)?;
        sink.enter(Pass::Backward);
        if self.places.head.is_alone {
            sink.complete(self.places.head.segment.index);
        }
        self.final_norm(weights, sums, sink)?;
        for layer in (0..self.size.layers).rev() {
            let Self { size, places, packed, kept, scratch } = self;
            let places = &places.blocks[layer];
            let segment = weights.segment(&places.segment.range)?;
            let packed = packed.as_mut().map(|packed| &mut packed.blocks[layer]);
            let mut weights = BlockWeights { places, segment, packed };
            // What the last block keeps is still there from forward.
            if size.recompute && layer + 1 < size.layers {
                let kept = &mut kept.block(layer, size);
                block::keep(size, &mut weights, kept, (Kind::Again, scratch));
            }
            let gradients = (sink.gradient(places.segment.index), sums);
            block::backward(size, weights, gradients, kept.block(layer, size), scratch);
            sink.complete(places.segment.index);
        }
        self.embeddings(batch.inputs, sums, sink);
        Ok(loss)
    }

    /// The gradients of the embeddings, which are added to few rows: a table is cleared first where
    /// it is to be written, but for a tied head's, which has written all of it.
    fn embeddings(&mut self, inputs: &[u32], sums: Sums, sink: &mut impl Sink<E::Wide>) {
        let Self { size, places, scratch, .. } = self;
        let (head_is_alone, places) = (places.head.is_alone, &places.embeddings);
        let (tokens, mut positions) = places.of_mut(sink.gradient(places.segment.index));
        if sums == Sums::Write {
            if head_is_alone {
                ops::clear(tokens);
            }
            positions.iter_mut().for_each(|positions| ops::clear(positions));
        }
        let shape = (size.attention.tokens, size.width);
        let (dx, tables) = (&scratch.gradient, 1 + usize::from(positions.is_some()));
        scratch.tools.meter.time(
            (Role::Embedding, Kind::Backward),
            || work::embedding_backward::<E>(dx.len(), tables),
            || embedding::backward(tokens, positions, dx, inputs, shape),
        );
        sink.complete(places.segment.index);
    }

    /// The sum of the losses of a batch.
    pub(super) fn evaluate(
        &mut self,
        weights: &mut impl Source<E>,
        batch: Batch<'_>,
    ) -> Result<f64, Error> {
        self.forward(weights, batch.inputs)?;
        let places = &self.places.head;
        let table = places.of(weights.segment(&places.segment.range)?);
        let (chunk, width) = (self.size.chunk_tokens::<E>(), self.size.width);
        let Scratch { normed, head, tools, .. } = &mut self.scratch;
        let Tools { packs, meter, .. } = tools;
        let chunks = normed.chunks(chunk * width).zip(batch.targets.chunks(chunk));
        let inputs = |(hidden, targets)| cross_entropy::Inputs { hidden, table, targets, width };
        let loss = |inputs| cross_entropy::forward(inputs, head, packs, meter);
        Ok(chunks.map(inputs).map(loss).sum())
    }

    /// From tokens to the output of the final norm, in `scratch.normed`.
    fn forward(&mut self, weights: &mut impl Source<E>, tokens: &[u32]) -> Result<(), Error> {
        let Self { size, places, packed, kept, scratch } = self;
        assert_eq!(tokens.len(), size.rows, "a batch of B x T tokens");
        let stream = size.rows * size.width;
        let shape = (size.attention.tokens, size.width);
        let input = &mut kept.streams[..stream];
        let tables = places.embeddings.of(weights.segment(&places.embeddings.segment.range)?);
        scratch.tools.meter.time(
            (Role::Embedding, Kind::Forward),
            || work::embedding::<E>(stream, 1 + usize::from(tables.1.is_some())),
            || embedding::forward(input, tokens, tables, shape),
        );
        for (layer, places) in places.blocks.iter().enumerate() {
            let segment = weights.segment(&places.segment.range)?;
            let packed = packed.as_mut().map(|packed| &mut packed.blocks[layer]);
            let weights = BlockWeights { places, segment, packed };
            block::forward(size, weights, kept.block(layer, size), scratch);
        }
        let places = &places.final_norm;
        let parameters = places.norm.of(weights.segment(&places.segment.range)?);
        let (input, stats) = kept.final_norm(size);
        let Scratch { normed, tools, .. } = scratch;
        tools.meter.time(
            (Role::Norm, Kind::Forward),
            || size.norm_work::<E>(false),
            || size.norm.forward(normed, stats, input, parameters),
        );
        Ok(())
    }

    /// Loss and gradient of the head, chunk by chunk; that of its input in `scratch.branch`.
    fn head(
        &mut self,
        weights: &mut impl Source<E>,
        targets: &[u32],
        (scale, mut sums): (E::Wide, Sums),
        sink: &mut impl Sink<E::Wide>,
    ) -> Result<f64, Error> {
        assert_eq!(targets.len(), self.size.rows, "a batch of B x T targets");
        let places = &self.places.head;
        let table = places.of(weights.segment(&places.segment.range)?);
        let (chunk, width) = (self.size.chunk_tokens::<E>(), self.size.width);
        let Scratch { normed, branch, head, tools, .. } = &mut self.scratch;
        let Tools { packs, meter, .. } = tools;
        let hidden = normed.chunks(chunk * width).zip(branch.chunks_mut(chunk * width));
        let mut loss = 0.0;
        for ((hidden, dhidden), targets) in hidden.zip(targets.chunks(chunk)) {
            let inputs = cross_entropy::Inputs { hidden, table, targets, width };
            sink.enter(Pass::Forward);
            loss += cross_entropy::forward(inputs, head, packs, meter);
            sink.enter(Pass::Backward);
            let dtable = (places.of_mut(sink.gradient(places.segment.index)), sums);
            cross_entropy::backward(dhidden, dtable, scale, inputs, head, packs, meter);
            sums = Sums::Add;
        }
        Ok(loss)
    }

    /// The final norm's backward: starts the gradient of the stream.
    fn final_norm(
        &mut self,
        weights: &mut impl Source<E>,
        sums: Sums,
        sink: &mut impl Sink<E::Wide>,
    ) -> Result<(), Error> {
        let Self { size, places: Places { final_norm: places, .. }, kept, scratch, .. } = self;
        let (weight, _) = places.norm.of(weights.segment(&places.segment.range)?);
        let gradients = places.norm.of_mut(sink.gradient(places.segment.index));
        let (input, stats) = kept.final_norm(size);
        let Scratch { branch, gradient, tools: Tools { meter, row_sums, .. }, .. } = scratch;
        ops::clear(gradient);
        let (gradients, saw) = ((gradients, sums), (&*stats, input));
        meter.time(
            (Role::Norm, Kind::Backward),
            || size.norm_work::<E>(true),
            || size.norm.backward(gradient, gradients, branch, saw, weight, row_sums),
        );
        sink.complete(places.segment.index);
        Ok(())
    }
}
