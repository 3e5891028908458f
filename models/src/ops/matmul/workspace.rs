//! Room in which products work.

use super::kernel::Kernel;
use super::pack::{WIDEST, aligned, room};
use crate::ops::Element;

/// Longest run of k that is packed at once, in cells.
const DEPTH: usize = 768;
/// Cells of B that are packed at once: 576 KiB in f32 and bf16.
const RIGHT: usize = 384 * 384;
/// Cells of A that are gathered at once.
const LEFT: usize = WIDEST * DEPTH / 2;
/// Sums that wait for the next block of k: of 384 columns and half of 1,024 rows, in whole tiles,
/// so that two threads pack a table once for so many tokens.
const SUMS: usize = 516 * 384;

/// Room for one packed block of each operand of a product, and for its sums.
///
/// Holds no results: only the speed of a product depends on it.
#[derive(Debug)]
pub(crate) struct Packs<E: Element> {
    pub(in crate::ops) kernel: &'static Kernel<E::Wide>,
    left: Vec<E::Wide>,
    right: Vec<E::Wide>,
    sums: Vec<E::Wide>,
}

/// The rooms of [`Packs`].
pub(super) struct Rooms<'a, W> {
    /// For cells of A.
    pub(super) left: &'a mut [W],
    /// For cells of B.
    pub(super) right: &'a mut [W],
    /// For sums that wait.
    pub(super) sums: &'a mut [W],
}

impl<E: Element> Packs<E> {
    fn new(kernel: &'static Kernel<E::Wide>) -> Self {
        Self { kernel, left: room(LEFT), right: room(RIGHT), sums: room(SUMS) }
    }

    fn bytes(&self) -> usize {
        (self.left.len() + self.right.len() + self.sums.len()) * size_of::<E::Wide>()
    }

    /// All rooms, each from a cache line on.
    pub(super) fn rooms(&mut self) -> Rooms<'_, E::Wide> {
        let Self { left, right, sums, .. } = self;
        Rooms { left: aligned(left), right: aligned(right), sums: aligned(sums) }
    }

    /// The run of k and the columns in one block of a product over `k`.
    ///
    /// Gathering A anew for each block of columns asks for fewer of those.
    pub(super) fn block(&self, k: usize, gather: bool) -> (usize, usize) {
        let steps = k.div_ceil(self.kernel.group);
        let most = if gather { DEPTH / 2 } else { DEPTH };
        let depth = steps.div_ceil(steps.div_ceil(most));
        let panel = self.kernel.panel();
        (depth * self.kernel.group, RIGHT / depth / panel * panel)
    }

    /// The rows of a block of `columns` whose sums find room.
    pub(super) fn rows_of_sums(&self, columns: usize) -> usize {
        SUMS / columns / self.kernel.rows * self.kernel.rows
    }
}

/// Packing buffers for products on a number of threads.
///
/// The number decides only how work is divided: results are the same for all.
#[derive(Debug)]
pub struct Workspace<E: Element> {
    pub(crate) packs: Vec<Packs<E>>,
}

impl<E: Element> Workspace<E> {
    /// Buffers for this many threads (at least 1).
    pub fn new(threads: usize) -> Self {
        Self::with_kernel(threads, E::kernel())
    }

    /// The same for other micro-kernels than the best.
    pub(crate) fn with_kernel(threads: usize, kernel: &'static Kernel<E::Wide>) -> Self {
        Self { packs: (0..threads.max(1)).map(|_| Packs::new(kernel)).collect() }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.packs.iter().map(Packs::bytes).sum()
    }
}
