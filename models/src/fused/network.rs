//! Forward and backward of the whole model, generic over the element: f32 and bf16 train, f64
//! checks.

use std::ops::Range;

use device::Allocator;

use super::activations::SavedActivations;
use super::block::{self, BlockWeights};
use super::norm::NormActivations;
use super::parameter_ranges::ParameterRanges;
use super::scratch::Scratch;
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
    /// The engine enters this pass.
    fn enter(&mut self, pass: Pass);
}

/// The model with its buffers.
pub(super) struct Network<E: Element> {
    size: Size,
    ranges: ParameterRanges,
    saved: SavedActivations<E>,
    scratch: Scratch<E>,
}

impl<E: Element> Network<E> {
    pub(super) fn new(
        allocator: &Allocator,
        config: &ModelConfig,
        size: Size,
        ranges: ParameterRanges,
    ) -> Self {
        let saved = SavedActivations::new(allocator, &size);
        let scratch = Scratch::new(allocator, config, &size);
        Self { size, ranges, saved, scratch }
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    pub(super) fn meter(&mut self) -> &mut Meter {
        &mut self.scratch.ops.meter
    }

    /// The sum of the losses of a batch; writes the gradient of `scale` times it to the sink's, or
    /// adds it.
    pub(super) fn train(
        &mut self,
        weights: &mut impl Source<E>,
        batch: Batch<'_>,
        scale: E::Wide,
        sums: Sums,
        sink: &mut impl Sink<E::Wide>,
    ) -> Result<f64, Error> {
        sink.enter(Pass::Forward);
        self.forward(weights, batch.inputs)?;
        let loss = self.head(weights, batch.targets, scale, sums, sink)?;
        sink.enter(Pass::Backward);
        if !self.ranges.head.is_tied {
            sink.complete(self.ranges.head.segment.index);
        }
        self.final_norm(weights, sums, sink)?;
        for layer in (0..self.size.layers).rev() {
            self.block_backward(layer, weights, sums, sink)?;
        }
        self.embeddings(batch.inputs, sums, sink);
        Ok(loss)
    }

    /// The sum of the losses of a batch.
    pub(super) fn evaluate(
        &mut self,
        weights: &mut impl Source<E>,
        batch: Batch<'_>,
    ) -> Result<f64, Error> {
        self.forward(weights, batch.inputs)?;
        let ranges = &self.ranges.head;
        let table = ranges.of(weights.segment(&ranges.segment.range)?);
        let chunk = self.size.chunk_tokens::<E>();
        let width = self.size.width;
        let Scratch { normed, head, ops, .. } = &mut self.scratch;
        let chunks = normed.host().chunks(chunk * width).zip(batch.targets.chunks(chunk));
        let losses = chunks.map(|(hidden, targets)| {
            let inputs = cross_entropy::Inputs { hidden, table, targets, width };
            cross_entropy::forward(inputs, head, &mut ops.packs, &mut ops.meter)
        });
        Ok(losses.sum())
    }

    /// From tokens to the output of the final norm, in `scratch.normed`.
    fn forward(&mut self, weights: &mut impl Source<E>, tokens: &[u32]) -> Result<(), Error> {
        let Self { size, ranges, saved, scratch } = self;
        assert_eq!(tokens.len(), size.rows, "a batch of B x T tokens");
        let stream = size.rows * size.width;
        let shape = (size.attention.tokens, size.width);
        let input = &mut saved.streams.host_mut()[..stream];
        let tables = ranges.embeddings.of(weights.segment(&ranges.embeddings.segment.range)?);
        let work = || work::embedding::<E>(stream, 1 + usize::from(tables.1.is_some()));
        scratch.ops.meter.time((Role::Embedding, Kind::Forward), work, || {
            embedding::forward(input, tokens, tables, shape);
        });
        for (layer, ranges) in ranges.blocks.iter().enumerate() {
            let segment = weights.segment(&ranges.segment.range)?;
            let weights = BlockWeights { ranges, segment };
            block::forward(size, weights, saved.block(layer, size), scratch);
        }
        let ranges = &ranges.final_norm;
        let parameters = ranges.norm.of(weights.segment(&ranges.segment.range)?);
        let (input, stats) = saved.final_norm(size);
        let Scratch { normed, ops, .. } = scratch;
        let work = || size.norm_work::<E>(false);
        ops.meter.time((Role::Norm, Kind::Forward), work, || {
            size.norm.forward(normed.host_mut(), stats, input, parameters);
        });
        Ok(())
    }

    /// Loss and gradient of the head, chunk by chunk; that of its input in `scratch.branch`.
    fn head(
        &mut self,
        weights: &mut impl Source<E>,
        targets: &[u32],
        scale: E::Wide,
        mut sums: Sums,
        sink: &mut impl Sink<E::Wide>,
    ) -> Result<f64, Error> {
        assert_eq!(targets.len(), self.size.rows, "a batch of B x T targets");
        let ranges = &self.ranges.head;
        let table = ranges.of(weights.segment(&ranges.segment.range)?);
        let chunk = self.size.chunk_tokens::<E>();
        let width = self.size.width;
        let Scratch { normed, branch, head, ops, .. } = &mut self.scratch;
        let packs = &mut ops.packs;
        let meter = &mut ops.meter;
        let hidden = normed.host().chunks(chunk * width);
        let hidden = hidden.zip(branch.host_mut().chunks_mut(chunk * width));
        let mut loss = 0.0;
        for ((hidden, dhidden), targets) in hidden.zip(targets.chunks(chunk)) {
            let inputs = cross_entropy::Inputs { hidden, table, targets, width };
            sink.enter(Pass::Forward);
            loss += cross_entropy::forward(inputs, head, packs, meter);
            sink.enter(Pass::Backward);
            let dtable = (ranges.of_mut(sink.gradient(ranges.segment.index)), sums);
            cross_entropy::backward(dhidden, dtable, scale, inputs, head, packs, meter);
            sums = Sums::Add;
        }
        Ok(loss)
    }

    /// The final norm's backward: the gradient of the stream begins with it.
    fn final_norm(
        &mut self,
        weights: &mut impl Source<E>,
        sums: Sums,
        sink: &mut impl Sink<E::Wide>,
    ) -> Result<(), Error> {
        let Self { size, ranges, saved, scratch } = self;
        let ranges = &ranges.final_norm;
        let weight = ranges.norm.of(weights.segment(&ranges.segment.range)?).weight;
        let gradients = ranges.norm.of_mut(sink.gradient(ranges.segment.index)).cleared_for(sums);
        let (input, stats) = saved.final_norm(size);
        let saved = NormActivations { input, stats };
        let Scratch { branch, gradient, ops, .. } = scratch;
        let gradient = gradient.host_mut();
        ops::clear(gradient);
        let row_sums = &mut ops.row_sums;
        let work = || size.norm_work::<E>(true);
        ops.meter.time((Role::Norm, Kind::Backward), work, || {
            size.norm.backward(gradient, gradients, branch.host(), saved, weight, row_sums);
        });
        sink.complete(ranges.segment.index);
        Ok(())
    }

    /// The backward of one block, after its forward where that was not saved.
    fn block_backward(
        &mut self,
        layer: usize,
        weights: &mut impl Source<E>,
        sums: Sums,
        sink: &mut impl Sink<E::Wide>,
    ) -> Result<(), Error> {
        let Self { size, ranges, saved, scratch } = self;
        let ranges = &ranges.blocks[layer];
        let segment = weights.segment(&ranges.segment.range)?;
        let weights = BlockWeights { ranges, segment };
        // What the last block saved is still there from forward.
        if size.recompute && layer + 1 < size.layers {
            block::recompute(size, weights, &mut saved.block(layer, size), scratch);
        }
        let gradients = sink.gradient(ranges.segment.index);
        block::backward(size, weights, saved.block(layer, size), gradients, sums, scratch);
        sink.complete(ranges.segment.index);
        Ok(())
    }

    /// The gradients of the embeddings, which are added to few rows: a table that is to be written
    /// is cleared first, unless it is a tied head's, which has written all of it.
    fn embeddings(&mut self, inputs: &[u32], sums: Sums, sink: &mut impl Sink<E::Wide>) {
        let Self { size, ranges, scratch, .. } = self;
        let head_is_tied = ranges.head.is_tied;
        let ranges = &ranges.embeddings;
        let (tokens, mut positions) = ranges.of_mut(sink.gradient(ranges.segment.index));
        if sums == Sums::Write {
            if !head_is_tied {
                ops::clear(tokens);
            }
            positions.iter_mut().for_each(|positions| ops::clear(positions));
        }
        let shape = (size.attention.tokens, size.width);
        let dx = scratch.gradient.host();
        let tables = 1 + usize::from(positions.is_some());
        let work = || work::embedding_backward::<E>(dx.len(), tables);
        scratch.ops.meter.time((Role::Embedding, Kind::Backward), work, || {
            embedding::backward(tokens, positions, dx, inputs, shape);
        });
        sink.complete(ranges.segment.index);
    }
}
