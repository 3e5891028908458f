//! The network: forward and backward of the whole model, written once over a set of ops.
//!
//! There is no tape. Every block saves what its backward needs (`activations.rs`), weight gradients
//! are written or accumulated in place, and a segment is declared complete as soon as its last
//! gradient is written, so that its reduction can start while backward continues. After
//! construction nothing is allocated.
//!
//! `block.rs` has the order of operations within a block, this file the rest. `ops.rs` is the
//! interface of the ops, `host/` and `cuda/` are its two sets. Every call is counted by the
//! engine's meter (`metered.rs`).

mod activations;
mod block;
pub(crate) mod cuda;
pub(crate) mod host;
mod linear;
mod metered;
mod ops;
mod options;
mod parameter_ranges;
mod probe;
mod scratch;
#[cfg(test)]
pub(crate) mod single_block;
mod size;
mod triad;

use std::ops::Range;

use device::{Allocator, View, ViewMut};

use self::activations::{FinalNormActivations, SavedActivations};
use self::block::{Block, BlockWeights};
use self::metered::Metered;
pub(crate) use self::ops::{Chunk, Ops, Wide};
pub use self::options::{AttentionBackend, LOGITS_BYTES_ON_CUDA, Options, Recompute};
pub(crate) use self::parameter_ranges::ParameterRanges;
pub use self::probe::{ProbeProduct, probe_shapes};
use self::scratch::Scratch;
pub(crate) use self::size::Size;
pub use self::triad::Triad;
use crate::meter::{Kind, Role};
use crate::ops::matmul::Sums;
use crate::ops::norm::{NormBackward, NormSaved};
use crate::ops::work;
use crate::tuning::ProductTuner;
use crate::{Batch, Error, Meter, ModelConfig, Pass};

/// [`crate::WeightSource`] for weights of any element.
pub(crate) trait Source<E: device::Element> {
    /// The weights of one segment, given by its range in the flat weights.
    fn segment(&mut self, range: &Range<usize>) -> Result<View<'_, E>, Error>;
}

/// [`crate::StepSink`] for gradients of any wide type.
pub(crate) trait Sink<T: device::Element> {
    /// As [`crate::StepSink::gradient`].
    fn gradient(&mut self, segment: usize) -> Result<ViewMut<'_, T>, Error>;
    /// As [`crate::StepSink::complete`].
    fn complete(&mut self, segment: usize) -> Result<(), Error>;
    /// The engine enters this pass.
    fn enter(&mut self, pass: Pass);
}

/// The model with its buffers and ops.
pub(crate) struct Network<O: Ops> {
    size: Size,
    ranges: ParameterRanges,
    saved: SavedActivations<O::Element>,
    scratch: Scratch<O::Element>,
    ops: Metered<O>,
}

impl<O: Ops> Network<O> {
    /// Allocates everything. With a counting allocator the network cannot compute.
    ///
    /// # Errors
    /// Those of [`Ops::new`].
    pub(crate) fn new(
        allocator: &Allocator,
        config: &ModelConfig,
        size: Size,
        ranges: ParameterRanges,
    ) -> Result<Self, Error> {
        let saved = SavedActivations::new(allocator, &size);
        let scratch = Scratch::new(allocator, &size);
        let ops = O::new(allocator, config, &size)?;
        let ops = Metered { ops, meter: Meter::of(&allocator.device()) };
        Ok(Self { size, ranges, saved, scratch, ops })
    }

    pub(crate) fn size(&self) -> Size {
        self.size
    }

    /// Those of the ops.
    pub(crate) fn fallbacks(&self) -> Vec<String> {
        self.ops.ops.fallbacks()
    }

    /// That of the ops.
    pub(crate) fn tuner(&mut self) -> Option<&mut dyn ProductTuner> {
        self.ops.ops.tuner()
    }

    pub(crate) fn meter(&mut self) -> &mut Meter {
        &mut self.ops.meter
    }

    /// Adds the sum of the losses of a batch to `loss`; writes the gradient of `scale` times it to
    /// the sink's, or adds it.
    pub(crate) fn train(
        &mut self,
        weights: &mut impl Source<O::Element>,
        batch: Batch<'_>,
        scale: Wide<O>,
        sums: Sums,
        loss: ViewMut<'_, f64>,
        sink: &mut impl Sink<Wide<O>>,
    ) -> Result<(), Error> {
        sink.enter(Pass::Forward);
        self.forward(weights, batch)?;
        self.head(weights, batch.targets, scale, sums, sink)?;
        self.ops.ops.add_losses(loss)?;
        if !self.ranges.head.is_tied {
            sink.complete(self.ranges.head.segment.index)?;
        }
        self.final_norm_backward(weights, sums, sink)?;
        for layer in (0..self.size.layers).rev() {
            self.block_backward(layer, weights, sums, sink)?;
        }
        self.embeddings_backward(batch.inputs, sums, sink)
    }

    /// The sum of the losses of a batch.
    pub(crate) fn evaluate(
        &mut self,
        weights: &mut impl Source<O::Element>,
        batch: Batch<'_>,
    ) -> Result<f64, Error> {
        self.forward(weights, batch)?;
        let ranges = &self.ranges.head;
        let segment = weights.segment(&ranges.segment.range)?;
        let table = segment.slice(ranges.table.clone());
        for chunk in self.size.chunks::<O::Element>() {
            self.losses(chunk, table, batch.targets, None)?;
        }
        let Self { scratch, ops, .. } = self;
        ops.ops.clear(scratch.loss.view_mut())?;
        ops.ops.add_losses(scratch.loss.view_mut())?;
        ops.ops.read(scratch.loss.view())
    }

    /// From tokens to the output of the final norm, in `scratch.normed`.
    fn forward(
        &mut self,
        weights: &mut impl Source<O::Element>,
        batch: Batch<'_>,
    ) -> Result<(), Error> {
        let Batch { inputs, targets } = batch;
        let rows = self.size.rows;
        assert_eq!([inputs.len(), targets.len()], [rows; 2], "a batch of B x T tokens and targets");
        self.ops.ops.begin(batch)?;
        self.embeddings(weights, inputs)?;
        for layer in 0..self.size.layers {
            let segment = weights.segment(&self.ranges.blocks[layer].segment.range)?;
            self.block(layer, segment).forward()?;
        }
        self.final_norm(weights)
    }

    fn embeddings(
        &mut self,
        weights: &mut impl Source<O::Element>,
        tokens: &[u32],
    ) -> Result<(), Error> {
        let Self { size, ranges, saved, ops, .. } = self;
        let ranges = &ranges.embeddings;
        let tables = ranges.of(weights.segment(&ranges.segment.range)?);
        let table_count = ranges.count();
        let stream = size.stream();
        let output = saved.streams.view_mut().slice(0..stream);
        let work = || work::embedding::<O::Element>(stream, table_count);
        ops.time((Role::Embedding, Kind::Forward), work, |ops| {
            ops.embedding(output, tokens, tables)
        })
    }

    fn block<'a>(&'a mut self, layer: usize, segment: View<'a, O::Element>) -> Block<'a, O> {
        let Self { size, ranges, saved, scratch, ops } = self;
        let weights = BlockWeights { ranges: &ranges.blocks[layer], segment };
        Block { size, weights, saved: saved.block(layer, size), scratch, ops }
    }

    fn final_norm(&mut self, weights: &mut impl Source<O::Element>) -> Result<(), Error> {
        let Self { size, ranges, saved, scratch, ops } = self;
        let ranges = &ranges.final_norm;
        let parameters = ranges.norm.of(weights.segment(&ranges.segment.range)?);
        let FinalNormActivations { input, stats } = saved.final_norm(size);
        let work = || size.norm_work::<O::Element>(false);
        ops.time((Role::Norm, Kind::Forward), work, |ops| {
            ops.norm(scratch.normed.view_mut(), stats, input, parameters)
        })
    }

    /// The logits and losses of a chunk; with a scale, for a gradient of so many times the loss.
    fn losses(
        &mut self,
        chunk: Chunk,
        table: View<'_, O::Element>,
        targets: &[u32],
        scale: Option<Wide<O>>,
    ) -> Result<(), Error> {
        let Self { size, scratch, ops, .. } = self;
        let shape = size.head(chunk);
        let hidden = scratch.normed.view().slice(chunk.elements(size.width));
        let targets = &targets[chunk.rows()];
        ops.time(
            (Role::Head, Kind::Forward),
            || work::head::<O::Element>(shape),
            |ops| ops.logits(chunk, hidden, table),
        )?;
        let computes_gradient = O::FUSES_CROSS_ENTROPY && scale.is_some();
        let kind = if computes_gradient { Kind::Whole } else { Kind::Forward };
        let work = || match kind {
            Kind::Whole => work::loss_backward::<O::Element>(shape),
            _ => work::loss::<O::Element>(shape),
        };
        ops.time((Role::CrossEntropy, kind), work, |ops| ops.cross_entropy(chunk, targets, scale))
    }

    /// Loss and gradient of the head, chunk by chunk; that of its input in `scratch.branch`.
    fn head(
        &mut self,
        weights: &mut impl Source<O::Element>,
        targets: &[u32],
        scale: Wide<O>,
        mut sums: Sums,
        sink: &mut impl Sink<Wide<O>>,
    ) -> Result<(), Error> {
        let segment = self.ranges.head.segment.clone();
        let range = self.ranges.head.table.clone();
        let table = weights.segment(&segment.range)?.slice(range.clone());
        for chunk in self.size.chunks::<O::Element>() {
            sink.enter(Pass::Forward);
            self.losses(chunk, table, targets, Some(scale))?;
            sink.enter(Pass::Backward);
            let dtable = sink.gradient(segment.index)?.slice(range.clone());
            let targets = &targets[chunk.rows()];
            self.head_backward(chunk, table, targets, scale, dtable, sums)?;
            sums = Sums::Add;
        }
        Ok(())
    }

    fn head_backward(
        &mut self,
        chunk: Chunk,
        table: View<'_, O::Element>,
        targets: &[u32],
        scale: Wide<O>,
        dtable: ViewMut<'_, Wide<O>>,
        sums: Sums,
    ) -> Result<(), Error> {
        let Self { size, scratch, ops, .. } = self;
        let shape = size.head(chunk);
        let rows = chunk.elements(size.width);
        if !O::FUSES_CROSS_ENTROPY {
            let work = || work::loss_backward::<O::Element>(shape);
            ops.time((Role::CrossEntropy, Kind::Backward), work, |ops| {
                ops.cross_entropy_backward(chunk, targets, scale)
            })?;
        }
        let dhidden = scratch.branch.view_mut().slice(rows.clone());
        ops.time(
            (Role::Head, Kind::Input),
            || work::head::<O::Element>(shape),
            |ops| ops.head_input(chunk, dhidden, table),
        )?;
        let hidden = scratch.normed.view().slice(rows);
        let work = || work::head_weight::<O::Element>(shape, sums);
        ops.time((Role::Head, Kind::Weight), work, |ops| {
            ops.head_weight(chunk, dtable, hidden, sums)
        })
    }

    /// The final norm's backward: the gradient of the stream begins with it.
    fn final_norm_backward(
        &mut self,
        weights: &mut impl Source<O::Element>,
        sums: Sums,
        sink: &mut impl Sink<Wide<O>>,
    ) -> Result<(), Error> {
        let Self { size, ranges, saved, scratch, ops } = self;
        let ranges = &ranges.final_norm;
        let weight = ranges.norm.of(weights.segment(&ranges.segment.range)?).weight;
        let gradients = ranges.norm.of_mut(sink.gradient(ranges.segment.index)?);
        let FinalNormActivations { input, stats } = saved.final_norm(size);
        let operands = NormBackward {
            dx: scratch.gradient.view_mut(),
            accumulate: false,
            dy: scratch.branch.view(),
            saved: NormSaved { input, stats: stats.into_view() },
            weight,
        };
        let work = || size.norm_work::<O::Element>(true);
        ops.time((Role::Norm, Kind::Backward), work, |ops| {
            ops.norm_backward(operands, gradients, sums)
        })?;
        sink.complete(ranges.segment.index)?;
        Ok(())
    }

    /// The backward of one block, after its forward where that was not saved.
    fn block_backward(
        &mut self,
        layer: usize,
        weights: &mut impl Source<O::Element>,
        sums: Sums,
        sink: &mut impl Sink<Wide<O>>,
    ) -> Result<(), Error> {
        let segment = self.ranges.blocks[layer].segment.clone();
        // What the last block saved is still there from forward.
        let recomputes = self.size.recompute == Recompute::Full && layer + 1 < self.size.layers;
        let mut block = self.block(layer, weights.segment(&segment.range)?);
        if recomputes {
            block.recompute()?;
        }
        block.backward(sink.gradient(segment.index)?, sums)?;
        sink.complete(segment.index)?;
        Ok(())
    }

    /// The gradients of the embeddings, which are added to few rows: a table that is to be written
    /// is cleared first, unless it is a tied head's, which has written all of it.
    fn embeddings_backward(
        &mut self,
        tokens: &[u32],
        sums: Sums,
        sink: &mut impl Sink<Wide<O>>,
    ) -> Result<(), Error> {
        let Self { size, ranges, scratch, ops, .. } = self;
        let head_is_tied = ranges.head.is_tied;
        let ranges = &ranges.embeddings;
        let mut tables = ranges.of_mut(sink.gradient(ranges.segment.index)?);
        if sums == Sums::Write {
            if !head_is_tied {
                ops.ops.clear(tables.tokens.reborrow())?;
            }
            if let Some(positions) = &mut tables.positions {
                ops.ops.clear(positions.reborrow())?;
            }
        }
        let work = || work::embedding_backward::<O::Element>(size.stream(), ranges.count());
        ops.time((Role::Embedding, Kind::Backward), work, |ops| {
            ops.embedding_backward(tables, scratch.gradient.view(), tokens)
        })?;
        sink.complete(ranges.segment.index)?;
        Ok(())
    }
}
