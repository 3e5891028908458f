//! One block alone, for tests against the oracle.

use device::Allocator;

use super::activations::SavedActivations;
use super::block::{Block, BlockWeights};
use super::host::HostOps;
use super::metered::Metered;
use super::ops::Ops;
use super::options::Options;
use super::parameter_ranges::ParameterRanges;
use super::scratch::Scratch;
use super::size::Size;
use crate::ops::Element;
use crate::workload::Compute;
use crate::{Layout, Meter, MicroBatch, ModelConfig, Sums};

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
    let segment = weights[ranges.segment.range.clone()].into();
    let allocator = Allocator::host();
    let saved = &mut SavedActivations::new(&allocator, size);
    let scratch = &mut Scratch::new(&allocator, size);
    let ops = HostOps::<E>::new(&allocator, config, size).unwrap();
    let ops = &mut Metered { ops, meter: Meter::default() };
    saved.streams.host_mut()[..x.len()].copy_from_slice(x);
    let weights = BlockWeights { ranges, segment };
    let mut block = Block { size, weights, saved: saved.block(0, size), scratch, ops };
    block.forward().unwrap();
    let output = block.saved.output.as_view().host().to_vec();
    block.scratch.gradient.host_mut().copy_from_slice(dy);
    let mut gradients = vec![E::Wide::default(); ranges.segment.range.len()];
    block.backward(gradients.as_mut_slice().into(), Sums::Write).unwrap();
    let dx = block.scratch.gradient.host().to_vec();
    SingleBlock { output, dx, gradients }
}
