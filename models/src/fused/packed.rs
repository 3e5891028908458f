//! Weights that stay packed between the micro-batches of a step.

use super::size::{Linear, Size};
use crate::ops::Element;
use crate::ops::matmul::PackedWeight;

/// Tokens of the largest micro-batch that is worth the memory.
const TOKENS_MAX: usize = 512;

/// Whether a step of so many micro-batches of so many tokens is faster where weights stay packed.
///
/// Packing takes about as long as multiplying by 25 rows: measured for GPT-2 124M on Zen 4 in bf16,
/// a tenth of Y and dX at 256 tokens and 3 to 5 % at 1,024. Of one micro-batch alone nothing is
/// read twice.
pub fn packing_pays(micro_batches: usize, tokens: usize) -> bool {
    micro_batches > 1 && tokens <= TOKENS_MAX
}

/// The weights of all blocks' products. The head's table is with the head.
pub(super) struct PackedWeights<E: Element> {
    /// From the first block to the last.
    pub(super) blocks: Vec<PackedBlock<E>>,
}

impl<E: Element> PackedWeights<E> {
    pub(super) fn new(size: &Size) -> Self {
        Self { blocks: (0..size.layers).map(|_| PackedBlock::new(size)).collect() }
    }

    pub(super) fn expire(&mut self) {
        self.blocks.iter_mut().flat_map(|block| &mut block.0).for_each(PackedWeight::expire);
    }

    /// Bytes of all, without making them.
    pub(super) fn planned_bytes(size: &Size) -> usize {
        let shapes = Linear::ALL.map(|linear| size.linear(linear));
        let bytes = shapes.map(|of| PackedWeight::<E>::planned_bytes(of.outputs, of.inputs));
        size.layers * bytes.iter().sum::<usize>()
    }
}

/// The weights of one block, in the order of [`Linear::ALL`].
pub(super) struct PackedBlock<E: Element>([PackedWeight<E>; Linear::ALL.len()]);

impl<E: Element> PackedBlock<E> {
    fn new(size: &Size) -> Self {
        let shapes = Linear::ALL.map(|linear| size.linear(linear));
        Self(shapes.map(|of| PackedWeight::new(of.outputs, of.inputs)))
    }

    /// The weight of one product.
    pub(super) fn of(&mut self, linear: Linear) -> &mut PackedWeight<E> {
        &mut self.0[linear as usize]
    }
}
