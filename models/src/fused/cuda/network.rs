//! Forward and backward of the whole model on a CUDA device.

use device::{Allocator, Device, View, ViewMut};

use super::batch::Tokens;
use super::block::BlockPass;
use super::buffers::{Buffers, Saved, Scratch, Workspaces};
use super::kernels::Kernels;
use super::layers::{SegmentGradients, parameters};
use crate::fused::options::AttentionBackend;
use crate::fused::parameter_ranges::ParameterRanges;
use crate::fused::size::Size;
use crate::layout::head_rows;
use crate::ops::attention::cuda::HEAD_WIDTH_MAX;
use crate::ops::cross_entropy::cuda::LogitsShape;
use crate::ops::kernels::{CudaElement, Format};
use crate::ops::matmul::Sums;
use crate::ops::matmul::cuda::Extras;
use crate::ops::norm::{NormBackward, NormSaved};
use crate::{Batch, Error, ModelConfig, Pass, StepSink, WeightSource};

/// The model with its buffers.
#[derive(Debug)]
pub(in crate::fused) struct Network<E: CudaElement> {
    size: Size,
    ranges: ParameterRanges,
    saved: Saved<E>,
    scratch: Scratch<E>,
    tokens: Tokens,
    /// `None` in a plan, which has no device.
    kernels: Option<Kernels>,
}

/// What a pass through the model uses.
struct NetworkPass<'a, E: CudaElement> {
    size: &'a Size,
    ranges: &'a ParameterRanges,
    saved: &'a mut Saved<E>,
    scratch: &'a mut Scratch<E>,
    tokens: &'a mut Tokens,
    kernels: &'a mut Kernels,
}

impl<E: CudaElement> Network<E> {
    /// Allocates everything; compiles kernels if the allocator is of a device, not of a plan.
    pub(in crate::fused) fn new(
        allocator: &Allocator,
        config: &ModelConfig,
        size: Size,
        ranges: ParameterRanges,
    ) -> Result<Self, Error> {
        check::<E>(config, &size)?;
        let Buffers { saved, scratch } = Buffers::new(allocator, config, &size);
        let tokens = Tokens::new(allocator, size.rows);
        let workspaces = Workspaces::new(allocator, &size);
        let kernels = match allocator.device() {
            Device::Cuda(device) if !allocator.is_counting() => {
                allocator.outcome()?;
                Some(Kernels::new::<E>(&device, &size, workspaces)?)
            }
            _ => None,
        };
        Ok(Self { size, ranges, saved, scratch, tokens, kernels })
    }

    pub(in crate::fused) fn size(&self) -> Size {
        self.size
    }

    fn pass(&mut self) -> NetworkPass<'_, E> {
        let Self { size, ranges, saved, scratch, tokens, kernels } = self;
        let Some(kernels) = kernels else { panic!("an engine of a plan does not compute") };
        NetworkPass { size, ranges, saved, scratch, tokens, kernels }
    }

    /// Adds the sum of the losses of a batch to `loss`; writes the gradient of `scale` times it to
    /// the sink's, or adds it.
    pub(in crate::fused) fn train(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
        scale: f32,
        sums: Sums,
        loss: ViewMut<'_, f64>,
        sink: &mut dyn StepSink,
    ) -> Result<(), Error> {
        let mut pass = self.pass();
        sink.enter(Pass::Forward);
        pass.forward(weights, batch)?;
        pass.head(weights, scale, sums, loss, sink)?;
        if !pass.ranges.head.is_tied {
            sink.complete(pass.ranges.head.segment.index);
        }
        pass.final_norm_backward(weights, sums, sink)?;
        for layer in (0..pass.size.layers).rev() {
            pass.block_backward(layer, weights, sums, sink)?;
        }
        pass.embeddings_backward(batch.inputs, sums, sink)
    }

    /// The sum of the losses of a batch.
    pub(in crate::fused) fn evaluate(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
    ) -> Result<f64, Error> {
        let mut pass = self.pass();
        pass.forward(weights, batch)?;
        pass.evaluate_head(weights)?;
        let mut loss = [0.0];
        pass.kernels.device.read(pass.scratch.loss.view(), &mut loss)?;
        Ok(loss[0])
    }
}

/// Kernels read rows 16 bytes at a time; those of attention read heads as they lie in their rows.
fn check<E: CudaElement>(config: &ModelConfig, size: &Size) -> Result<(), Error> {
    if size.attention_backend == AttentionBackend::Cudnn && E::FORMAT != Format::Bf16 {
        let expected = "flash with precision.compute = f32";
        return Err(Error::invalid("run.attention", "cudnn", expected));
    }
    let widths = [("model.width", config.width), ("model.feed_forward", config.feed_forward)];
    for (key, width) in widths {
        if !width.is_multiple_of(8) {
            return Err(Error::invalid(key, width, "a multiple of 8 with run.device = cuda"));
        }
    }
    let head_width = size.attention.head_width;
    if !head_width.is_multiple_of(2) || head_width > HEAD_WIDTH_MAX {
        let expected = format!("even and at most {HEAD_WIDTH_MAX} with run.device = cuda");
        return Err(Error::invalid("model.width / model.heads", head_width, expected));
    }
    Ok(())
}

impl<E: CudaElement> NetworkPass<'_, E> {
    /// From tokens to the output of the final norm, in `scratch.normed`.
    fn forward(&mut self, weights: &mut dyn WeightSource, batch: Batch<'_>) -> Result<(), Error> {
        self.kernels.tokens.send(self.tokens, batch)?;
        self.embeddings(weights)?;
        for layer in 0..self.size.layers {
            let ranges = &self.ranges.blocks[layer];
            let segment = E::view(weights.segment(&ranges.segment.range)?);
            let (mut pass, saved) = self.block(layer, segment);
            pass.forward(&mut saved.block(layer, pass.size))?;
        }
        self.final_norm(weights)
    }

    fn block<'a>(
        &'a mut self,
        layer: usize,
        weights: View<'a, E>,
    ) -> (BlockPass<'a, E>, &'a mut Saved<E>) {
        let Self { size, ranges, saved, scratch, kernels, .. } = self;
        let ranges = &ranges.blocks[layer];
        (BlockPass { size, ranges, weights, kernels, scratch }, saved)
    }

    fn embeddings(&mut self, weights: &mut dyn WeightSource) -> Result<(), Error> {
        let ranges = &self.ranges.embeddings;
        let segment = E::view(weights.segment(&ranges.segment.range)?);
        let tokens = segment.slice(ranges.tokens.clone());
        let positions = ranges.positions.clone().map(|range| segment.slice(range));
        let stream = self.size.rows * self.size.width;
        let output = self.saved.streams.view_mut().slice(0..stream);
        let sequence_tokens = self.size.attention.tokens;
        let inputs = self.tokens.inputs();
        self.kernels.embedding.forward(output, inputs, tokens, positions, sequence_tokens)?;
        Ok(())
    }

    fn final_norm(&mut self, weights: &mut dyn WeightSource) -> Result<(), Error> {
        let ranges = &self.ranges.final_norm;
        let segment = E::view(weights.segment(&ranges.segment.range)?);
        let shape = self.kernels.layers.norm_shape();
        let (input, stats) = final_norm_saved(self.saved, self.size);
        let normed = self.scratch.normed.view_mut();
        let norm = parameters(&ranges.norm, segment);
        Ok(self.kernels.norm.forward(normed, stats, input, norm, shape)?)
    }

    /// Loss and gradient of the head, chunk by chunk; that of its input in `scratch.branch`.
    fn head(
        &mut self,
        weights: &mut dyn WeightSource,
        scale: f32,
        mut sums: Sums,
        mut loss: ViewMut<'_, f64>,
        sink: &mut dyn StepSink,
    ) -> Result<(), Error> {
        let ranges = &self.ranges.head;
        let table = E::view(weights.segment(&ranges.segment.range)?).slice(ranges.padded.clone());
        for start in self.chunk_starts() {
            sink.enter(Pass::Forward);
            let chunk = self.logits(table, start)?;
            self.cross_entropy(loss.reborrow(), chunk, Some(scale))?;
            sink.enter(Pass::Backward);
            let Self { size, scratch, kernels, .. } = self;
            let LogitsShape { tokens, stride, .. } = chunk.shape;
            let rows = chunk.start * size.width..(chunk.start + tokens) * size.width;
            let dlogits = scratch.logits.view().slice(0..tokens * stride);
            let products = kernels.head.of(tokens);
            let blas = &mut kernels.layers.blas;
            let dhidden = scratch.branch.view_mut().slice(rows.clone());
            products.input(blas, dhidden, dlogits, table, None)?;
            let dtable = sink.gradient(ranges.segment.index).slice(ranges.padded.clone());
            let hidden = scratch.normed.view().slice(rows);
            products.weight(blas, dtable, dlogits, hidden, sums)?;
            sums = Sums::Add;
        }
        Ok(())
    }

    /// The sum of the losses, in `scratch.loss`.
    fn evaluate_head(&mut self, weights: &mut dyn WeightSource) -> Result<(), Error> {
        let ranges = &self.ranges.head;
        let table = E::view(weights.segment(&ranges.segment.range)?).slice(ranges.padded.clone());
        self.kernels.device.clear(self.scratch.loss.view_mut())?;
        for start in self.chunk_starts() {
            let chunk = self.logits(table, start)?;
            let Self { scratch, tokens, kernels, .. } = self;
            let targets = tokens.targets().slice(chunk.rows());
            let logits = scratch.logits.view_mut().slice(0..chunk.elements());
            let loss = scratch.loss.view_mut();
            let losses = scratch.losses.view_mut();
            kernels.cross_entropy.run(loss, losses, logits, targets, chunk.shape, None)?;
        }
        Ok(())
    }

    /// Where the chunks of tokens start whose logits exist at one time.
    fn chunk_starts(&self) -> impl Iterator<Item = usize> + use<E> {
        (0..self.size.rows).step_by(self.size.chunk_tokens::<E>())
    }

    /// Computes the logits of the chunk that starts at a token.
    fn logits(&mut self, table: View<'_, E>, start: usize) -> Result<Chunk, Error> {
        let Self { size, scratch, kernels, .. } = self;
        let tokens = size.chunk_tokens::<E>().min(size.rows - start);
        let stride = head_rows(size.vocabulary);
        let chunk =
            Chunk { start, shape: LogitsShape { tokens, vocabulary: size.vocabulary, stride } };
        let hidden = scratch.normed.view();
        let hidden = hidden.slice(start * size.width..(start + tokens) * size.width);
        let logits = scratch.logits.view_mut().slice(0..chunk.elements());
        let blas = &mut kernels.layers.blas;
        kernels.head.of(tokens).forward(blas, logits, hidden, table, Extras::default())?;
        Ok(chunk)
    }

    /// Adds the losses of a chunk, and replaces its logits by their gradients.
    fn cross_entropy(
        &mut self,
        loss: ViewMut<'_, f64>,
        chunk: Chunk,
        scale: Option<f32>,
    ) -> Result<(), Error> {
        let Self { scratch, tokens, kernels, .. } = self;
        let targets = tokens.targets().slice(chunk.rows());
        let logits = scratch.logits.view_mut().slice(0..chunk.elements());
        let losses = scratch.losses.view_mut();
        Ok(kernels.cross_entropy.run(loss, losses, logits, targets, chunk.shape, scale)?)
    }

    /// The final norm's backward: the gradient of the stream begins with it.
    fn final_norm_backward(
        &mut self,
        weights: &mut dyn WeightSource,
        sums: Sums,
        sink: &mut dyn StepSink,
    ) -> Result<(), Error> {
        let ranges = &self.ranges.final_norm;
        let segment = E::view(weights.segment(&ranges.segment.range)?);
        let weight = parameters(&ranges.norm, segment).weight;
        let (input, stats) = final_norm_saved(self.saved, self.size);
        let saved = NormSaved { input, stats: stats.into_view() };
        let view = sink.gradient(ranges.segment.index);
        let Scratch { branch, gradient, partials, .. } = &mut *self.scratch;
        let operands = NormBackward {
            dx: gradient.view_mut(),
            accumulate: false,
            dy: branch.view(),
            saved,
            weight,
        };
        let Kernels { layers, norm, .. } = &*self.kernels;
        let gradients = &mut SegmentGradients { view, sums };
        layers.norm(norm, gradients, &ranges.norm, operands, partials)?;
        sink.complete(ranges.segment.index);
        Ok(())
    }

    /// The backward of one block, after its forward where that was not saved.
    fn block_backward(
        &mut self,
        layer: usize,
        weights: &mut dyn WeightSource,
        sums: Sums,
        sink: &mut dyn StepSink,
    ) -> Result<(), Error> {
        let segment = self.ranges.blocks[layer].segment.clone();
        // What the last block saved is still there from forward.
        let recomputes = self.size.recompute && layer + 1 < self.size.layers;
        let weights = E::view(weights.segment(&segment.range)?);
        let (mut pass, saved) = self.block(layer, weights);
        let mut saved = saved.block(layer, pass.size);
        if recomputes {
            pass.recompute(&mut saved)?;
        }
        let view = sink.gradient(segment.index);
        pass.backward(&mut saved, &mut SegmentGradients { view, sums })?;
        sink.complete(segment.index);
        Ok(())
    }

    /// The gradients of the embeddings, which are added to few rows: a table that is to be written
    /// is cleared first, unless it is a tied head's, which has written all of it.
    fn embeddings_backward(
        &mut self,
        inputs: &[u32],
        sums: Sums,
        sink: &mut dyn StepSink,
    ) -> Result<(), Error> {
        let ranges = &self.ranges.embeddings;
        let width = self.size.width;
        let mut view = sink.gradient(ranges.segment.index);
        let mut dtokens = view.reborrow().slice(ranges.tokens.clone());
        if sums == Sums::Write && !self.ranges.head.is_tied {
            self.kernels.device.clear(dtokens.reborrow())?;
        }
        let dx = self.scratch.gradient.view();
        let groups = self.kernels.tokens.send_groups(self.tokens, inputs)?;
        self.kernels.embedding.backward_tokens(dtokens, dx, groups, width)?;
        if let Some(positions) = ranges.positions.clone() {
            let mut dtable = view.slice(positions);
            let tokens = self.size.attention.tokens;
            // Positions beyond the sequences' have no gradient.
            if sums == Sums::Write {
                self.kernels.device.clear(dtable.reborrow())?;
            }
            self.kernels.embedding.backward_positions(dtable, dx, tokens, width, true)?;
        }
        sink.complete(ranges.segment.index);
        Ok(())
    }
}

/// Some tokens whose logits exist at one time.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    /// The first token.
    start: usize,
    shape: LogitsShape,
}

impl Chunk {
    fn rows(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.shape.tokens
    }

    /// Of its logits.
    fn elements(&self) -> usize {
        self.shape.tokens * self.shape.stride
    }
}

/// The input of the final norm, and its statistics.
fn final_norm_saved<'a, E: CudaElement>(
    saved: &'a mut Saved<E>,
    size: &Size,
) -> (View<'a, E>, ViewMut<'a, f32>) {
    let stream = size.rows * size.width;
    let input = saved.streams.view().slice(size.layers * stream..(size.layers + 1) * stream);
    let stats = 2 * size.saved_blocks() * size.stats();
    (input, saved.stats.view_mut().slice(stats..stats + size.stats()))
}
