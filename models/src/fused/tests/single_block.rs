//! One block alone, for tests against the oracle.

use device::Allocator;

use crate::fused::Options;
use crate::fused::activations::SavedActivations;
use crate::fused::block::{BlockWeights, backward, forward};
use crate::fused::parameter_ranges::ParameterRanges;
use crate::fused::scratch::Scratch;
use crate::fused::size::Size;
use crate::ops::Element;
use crate::workload::Compute;
use crate::{Layout, MicroBatch, ModelConfig, Sums};

/// What one block computes.
pub(crate) struct SingleBlock<E: Element> {
    /// Output (M, C).
    pub(crate) output: Vec<E>,
    /// Gradient of the input (M, C).
    pub(crate) dx: Vec<E>,
    /// Gradients of the block's segment.
    pub(crate) gradients: Vec<E::Wide>,
}

/// Runs the first block of a model, given all weights: forward on `x` (M, C), backward on `dy`
/// (M, C).
pub(crate) fn single_block<E: Element>(
    config: &ModelConfig,
    layout: &Layout,
    micro_batch: MicroBatch,
    weights: &[E],
    x: &[E],
    dy: &[E],
) -> SingleBlock<E> {
    let options = Options { threads: 1, ..Compute::F32.into() };
    let size = &Size::new(config, micro_batch, options);
    let ranges = &ParameterRanges::new(layout, config).blocks[0];
    let segment = &weights[ranges.segment.range.clone()];
    let weights = BlockWeights { ranges, segment };
    let allocator = Allocator::host();
    let mut saved = SavedActivations::new(&allocator, size);
    let mut scratch = Scratch::new(&allocator, config, size);
    saved.streams.host_mut()[..x.len()].copy_from_slice(x);
    forward(size, weights, saved.block(0, size), &mut scratch);
    let output = saved.block(0, size).output.to_vec();
    scratch.gradient.host_mut().copy_from_slice(dy);
    let mut gradients = vec![E::Wide::default(); ranges.segment.range.len()];
    let block = saved.block(0, size);
    backward(size, weights, block, &mut gradients, Sums::Write, &mut scratch);
    SingleBlock { output, dx: scratch.gradient.host().to_vec(), gradients }
}
