//! Weights that stay packed between the micro-batches of a step.

use device::Allocator;

use super::linear::Linear;
use super::size::Size;
use crate::ops::Element;
use crate::ops::matmul::PackedWeight;

/// The weights of all blocks' products. The head packs its table itself.
pub(super) struct PackedWeights<E: Element> {
    /// From the first block to the last.
    pub(super) blocks: Vec<PackedBlock<E>>,
}

impl<E: Element> PackedWeights<E> {
    pub(super) fn new(allocator: &Allocator, size: &Size) -> Self {
        Self { blocks: (0..size.layers).map(|_| PackedBlock::new(allocator, size)).collect() }
    }

    /// The weights have changed: products pack them anew.
    pub(super) fn expire(&mut self) {
        self.blocks.iter_mut().flat_map(|block| &mut block.0).for_each(PackedWeight::expire);
    }
}

/// The weights of one block, in the order of [`Linear::ALL`].
pub(super) struct PackedBlock<E: Element>([PackedWeight<E>; Linear::ALL.len()]);

impl<E: Element> PackedBlock<E> {
    fn new(allocator: &Allocator, size: &Size) -> Self {
        let shapes = Linear::ALL.map(|linear| size.linear(linear));
        Self(shapes.map(|of| PackedWeight::new(allocator, of.outputs, of.inputs)))
    }

    /// The weight of one product.
    pub(super) fn of(&mut self, linear: Linear) -> &mut PackedWeight<E> {
        &mut self.0[linear as usize]
    }
}
