//! The memory in which every thread computes its blocks.

use device::{Allocator, DeviceBuffer};

use super::{BLOCK, Shape};
use crate::ops::matmul::kernels;
use crate::ops::matmul::tile::Kernel;
use crate::ops::{Element, Float};

/// The memory that every thread computes its blocks in.
///
/// The number of threads decides only how work is divided: results are the same for all.
#[derive(Debug)]
pub struct Workspace<E: Element> {
    pub(super) threads: Vec<Buffers<E>>,
}

/// Buffers of one thread; [`Scratch`] describes their use.
#[derive(Debug)]
pub(super) struct Buffers<E: Element> {
    kernel: &'static Kernel<E::Wide>,
    keys: DeviceBuffer<E::Wide>,
    values: DeviceBuffer<E::Wide>,
    panels: DeviceBuffer<E::Wide>,
    columns: [DeviceBuffer<E::Wide>; 2],
    rows: [DeviceBuffer<E::Wide>; 2],
    scores: DeviceBuffer<E::Wide>,
    probability_gradients: DeviceBuffer<E::Wide>,
    along_keys: DeviceBuffer<E::Wide>,
    probabilities: DeviceBuffer<E::Wide>,
    score_gradients: DeviceBuffer<E::Wide>,
    by_query: DeviceBuffer<E::Wide>,
    sums: DeviceBuffer<E::Wide>,
    key_sums: DeviceBuffer<E::Wide>,
    value_sums: DeviceBuffer<E::Wide>,
}

/// One thread's blocks, packed for the micro-kernels or as sums.
#[derive(Debug)]
pub(super) struct Scratch<'a, E: Element> {
    pub(super) kernel: &'static Kernel<E::Wide>,
    /// k and v (T, D) in packed rows, where the micro-kernels cannot read them in place.
    pub(super) keys: &'a mut [E::Wide],
    pub(super) values: &'a mut [E::Wide],
    /// v (forward) or k (backward) in panels of D columns, block by block.
    pub(super) panels: &'a mut [E::Wide],
    /// q^T and dout^T (D, BLOCK), and q and dout (BLOCK, D), in panels.
    pub(super) columns: [&'a mut [E::Wide]; 2],
    pub(super) rows: [&'a mut [E::Wide]; 2],
    /// S^T, and dP^T (BLOCK keys, BLOCK queries).
    pub(super) scores: &'a mut [[E::Wide; BLOCK]],
    pub(super) probability_gradients: &'a mut [[E::Wide; BLOCK]],
    /// P or dS packed along the keys.
    pub(super) along_keys: &'a mut [[E::Wide; BLOCK]],
    /// P^T and dS^T packed along the queries.
    pub(super) probabilities: &'a mut [[E::Wide; BLOCK]],
    pub(super) score_gradients: &'a mut [[E::Wide; BLOCK]],
    /// P or dS in contiguous rows, where the micro-kernels need them.
    pub(super) by_query: &'a mut [E::Wide],
    /// out or dq (BLOCK, D); dk and dv (T, D), each row of whole vectors.
    pub(super) sums: &'a mut [E::Wide],
    pub(super) key_sums: &'a mut [E::Wide],
    pub(super) value_sums: &'a mut [E::Wide],
}

/// Elements of D in sums and panels: whole vectors.
fn stride<W: Float>(head_width: usize, kernel: &Kernel<W>) -> usize {
    head_width.next_multiple_of(kernel.lanes)
}

impl<E: Element> Buffers<E> {
    fn new(allocator: &Allocator, shape: &Shape, kernel: &'static Kernel<E::Wide>) -> Self {
        let Shape { tokens, head_width, .. } = *shape;
        let zeros = |len| allocator.zeros(len);
        let block = || zeros(BLOCK * BLOCK);
        let stride = stride(head_width, kernel);
        let steps = kernel.steps(head_width);
        let packed = if kernel.reads_in_place::<E>(head_width) { 0 } else { tokens * steps };
        let block_steps = kernel.steps(BLOCK);
        Self {
            kernel,
            keys: zeros(packed),
            values: zeros(packed),
            panels: zeros(tokens.div_ceil(BLOCK) * block_steps * stride),
            columns: [zeros(steps * BLOCK), zeros(steps * BLOCK)],
            rows: [zeros(block_steps * stride), zeros(block_steps * stride)],
            scores: block(),
            probability_gradients: block(),
            along_keys: block(),
            probabilities: block(),
            score_gradients: block(),
            by_query: zeros(if kernel.needs_contiguous_rows() { BLOCK * block_steps } else { 0 }),
            sums: zeros(BLOCK * stride),
            key_sums: zeros(tokens * stride),
            value_sums: zeros(tokens * stride),
        }
    }

    pub(super) fn scratch(&mut self) -> Scratch<'_, E> {
        fn block<W: Float>(buffer: &mut DeviceBuffer<W>) -> &mut [[W; BLOCK]] {
            buffer.host_mut().as_chunks_mut().0
        }
        Scratch {
            kernel: self.kernel,
            keys: self.keys.host_mut(),
            values: self.values.host_mut(),
            panels: self.panels.host_mut(),
            columns: self.columns.each_mut().map(DeviceBuffer::host_mut),
            rows: self.rows.each_mut().map(DeviceBuffer::host_mut),
            scores: block(&mut self.scores),
            probability_gradients: block(&mut self.probability_gradients),
            along_keys: block(&mut self.along_keys),
            probabilities: block(&mut self.probabilities),
            score_gradients: block(&mut self.score_gradients),
            by_query: self.by_query.host_mut(),
            sums: self.sums.host_mut(),
            key_sums: self.key_sums.host_mut(),
            value_sums: self.value_sums.host_mut(),
        }
    }
}

impl<E: Element> Workspace<E> {
    /// Creates a workspace for this many threads (at least 1) at this T and D.
    pub fn new(allocator: &Allocator, threads: usize, shape: &Shape) -> Self {
        Self::with_kernel(allocator, threads, shape, kernels::best::<E>())
    }

    /// Creates a workspace for the given micro-kernel instead of the best.
    pub(super) fn with_kernel(
        allocator: &Allocator,
        threads: usize,
        shape: &Shape,
        kernel: &'static Kernel<E::Wide>,
    ) -> Self {
        let buffers = |_| Buffers::new(allocator, shape, kernel);
        Self { threads: (0..threads.max(1)).map(buffers).collect() }
    }
}
