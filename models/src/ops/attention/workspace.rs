//! Room for the blocks of every thread.

use super::{BLOCK, Shape};
use crate::ops::Element;
use crate::ops::matmul::kernel::Kernel;

/// Room for the blocks of every thread.
///
/// The number of threads decides only how work is divided: results are the same for all.
#[derive(Debug)]
pub struct Workspace<E: Element> {
    pub(super) parts: Vec<Scratch<E>>,
}

/// One thread's blocks, in cells of the micro-kernels or in sums.
#[derive(Debug)]
pub(super) struct Scratch<E: Element> {
    pub(super) kernel: &'static Kernel<E::Wide>,
    /// k and v (T, D) in rows of cells, where the micro-kernels cannot read them as they are.
    pub(super) keys: Vec<E::Wide>,
    pub(super) values: Vec<E::Wide>,
    /// v (forward) or k (backward) in panels of D columns, block by block.
    pub(super) panels: Vec<E::Wide>,
    /// q^T and dout^T (D, BLOCK), and q and dout (BLOCK, D), in panels.
    pub(super) columns: [Vec<E::Wide>; 2],
    pub(super) rows: [Vec<E::Wide>; 2],
    /// S^T, and dP^T (BLOCK keys, BLOCK queries).
    pub(super) scores: Vec<[E::Wide; BLOCK]>,
    pub(super) changes: Vec<[E::Wide; BLOCK]>,
    /// P or dS in cells along the keys, and P^T and dS^T in cells along the queries.
    pub(super) along_keys: Vec<[E::Wide; BLOCK]>,
    pub(super) along_queries: [Vec<[E::Wide; BLOCK]>; 2],
    /// Any of those in rows of queries or keys, where the micro-kernels ask for it.
    pub(super) left: Vec<E::Wide>,
    /// out or dq (BLOCK, D); dk and dv (T, D), each row of whole vectors.
    pub(super) sums: Vec<E::Wide>,
    pub(super) key_sums: Vec<E::Wide>,
    pub(super) value_sums: Vec<E::Wide>,
}

/// Elements of D in sums and panels: whole vectors.
pub(super) fn stride<W: crate::ops::Float>(head_width: usize, kernel: &Kernel<W>) -> usize {
    head_width.next_multiple_of(kernel.lanes())
}

impl<E: Element> Scratch<E> {
    fn new(shape: &Shape, kernel: &'static Kernel<E::Wide>) -> Self {
        let Shape { tokens, head_width, .. } = *shape;
        let zeros = |len| vec![E::Wide::ZERO; len];
        let block = || vec![[E::Wide::ZERO; BLOCK]; BLOCK];
        let stride = stride(head_width, kernel);
        let steps = kernel.steps(head_width);
        let copied = if kernel.reads_rows::<E>(head_width) { 0 } else { tokens * steps };
        let block_steps = kernel.steps(BLOCK);
        Self {
            kernel,
            keys: zeros(copied),
            values: zeros(copied),
            panels: zeros(tokens.div_ceil(BLOCK) * block_steps * stride),
            columns: [zeros(steps * BLOCK), zeros(steps * BLOCK)],
            rows: [zeros(block_steps * stride), zeros(block_steps * stride)],
            scores: block(),
            changes: block(),
            along_keys: block(),
            along_queries: [block(), block()],
            left: zeros(if kernel.reads_rows_only() { BLOCK * block_steps } else { 0 }),
            sums: zeros(BLOCK * stride),
            key_sums: zeros(tokens * stride),
            value_sums: zeros(tokens * stride),
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let blocks = |blocks: &[&Vec<[E::Wide; BLOCK]>]| -> usize {
            blocks.iter().map(|block| block.len() * BLOCK).sum()
        };
        let [probabilities, differences] = &self.along_queries;
        let lens = |rooms: &[Vec<E::Wide>]| -> usize { rooms.iter().map(Vec::len).sum() };
        let rooms = [&self.keys, &self.values, &self.panels, &self.left, &self.sums];
        let rooms: usize = rooms.into_iter().map(Vec::len).sum();
        rooms
            + lens(&self.columns)
            + lens(&self.rows)
            + blocks(&[probabilities, differences])
            + blocks(&[&self.scores, &self.changes, &self.along_keys])
            + self.key_sums.len()
            + self.value_sums.len()
    }

    fn elements(shape: &Shape, kernel: &Kernel<E::Wide>) -> usize {
        let Shape { tokens, head_width, .. } = *shape;
        let stride = stride(head_width, kernel);
        let steps = kernel.steps(head_width);
        let copied = if kernel.reads_rows::<E>(head_width) { 0 } else { tokens * steps };
        let block_steps = kernel.steps(BLOCK);
        let panels = (tokens.div_ceil(BLOCK) + 2) * block_steps * stride;
        let sums = (BLOCK + 2 * tokens) * stride;
        let left = if kernel.reads_rows_only() { BLOCK * block_steps } else { 0 };
        2 * copied + panels + 2 * steps * BLOCK + left + 5 * BLOCK * BLOCK + sums
    }
}

impl<E: Element> Workspace<E> {
    /// Room for this many threads (at least 1) at this T and D.
    pub fn new(threads: usize, shape: &Shape) -> Self {
        Self::with_kernel(threads, shape, E::kernel())
    }

    /// The same for other micro-kernels than the best.
    pub(crate) fn with_kernel(
        threads: usize,
        shape: &Shape,
        kernel: &'static Kernel<E::Wide>,
    ) -> Self {
        Self { parts: (0..threads.max(1)).map(|_| Scratch::new(shape, kernel)).collect() }
    }

    /// Bytes of a workspace, without making one.
    pub fn planned_bytes(threads: usize, shape: &Shape) -> usize {
        let elements = Scratch::<E>::elements(shape, E::kernel());
        threads.max(1) * elements * size_of::<E::Wide>()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.len() * size_of::<E::Wide>()).sum()
    }
}
