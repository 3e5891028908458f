//! Scratch memory of products.

use device::{Allocator, DeviceBuffer};

use super::blocking::{Blocking, BufferSizes};
use super::extent::Extent;
use super::grid::ThreadGrid;
use crate::ops::Element;
use crate::ops::matmul::kernels;
use crate::ops::matmul::tile::Kernel;

/// One thread's buffers, as large as the products so far needed.
///
/// They hold no results: only the speed of a product depends on them.
#[derive(Debug)]
pub(super) struct ThreadWorkspace<E: Element> {
    pub(super) kernel: &'static Kernel<E::Wide>,
    allocator: Allocator,
    left: DeviceBuffer<E::Wide>,
    right: DeviceBuffer<E::Wide>,
    sums: DeviceBuffer<E::Wide>,
}

/// The buffers of a [`ThreadWorkspace`].
pub(super) struct Buffers<'a, W> {
    /// Buffer for packed rows of A.
    pub(super) left: &'a mut [W],
    /// Buffer for panels of B.
    pub(super) right: &'a mut [W],
    /// Buffer for partial sums.
    pub(super) sums: &'a mut [W],
}

impl<E: Element> ThreadWorkspace<E> {
    fn new(allocator: &Allocator, kernel: &'static Kernel<E::Wide>) -> Self {
        let [left, right, sums] = [(); 3].map(|()| allocator.zeros(0));
        Self { kernel, allocator: allocator.clone(), left, right, sums }
    }

    /// Allocates what is missing: nothing once every product has run.
    pub(super) fn reserve(&mut self, sizes: BufferSizes) {
        let Self { allocator, left, right, sums, .. } = self;
        for (buffer, needed) in [(left, sizes.left), (right, sizes.right), (sums, sizes.sums)] {
            if buffer.len() < needed {
                *buffer = allocator.zeros(0); // frees the smaller one before
                *buffer = allocator.zeros(needed);
            }
        }
    }

    pub(super) fn buffers(&mut self) -> Buffers<'_, E::Wide> {
        let Self { left, right, sums, .. } = self;
        Buffers { left: left.host_mut(), right: right.host_mut(), sums: sums.host_mut() }
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        (self.left.len() + self.right.len() + self.sums.len()) * size_of::<E::Wide>()
    }
}

/// The buffers that each of `threads` threads needs for all of some products.
pub(super) fn buffer_sizes<E: Element>(
    extents: &[Extent],
    kernel: &Kernel<E::Wide>,
    threads: usize,
) -> impl Iterator<Item = BufferSizes> {
    let of = move |thread, extent: &Extent| {
        let part = ThreadGrid::new::<E>(extent, kernel, threads).part(thread);
        if part.is_empty() {
            return BufferSizes::default();
        }
        Blocking::new::<E>(extent, part.rows.len(), part.columns.len(), kernel).buffers
    };
    (0..threads).map(move |thread| {
        let sizes = extents.iter().map(|extent| of(thread, extent));
        sizes.fold(BufferSizes::default(), BufferSizes::max)
    })
}

/// Scratch memory for products on a number of threads.
///
/// The number decides only how work is divided: results are the same for all.
#[derive(Debug)]
pub struct Workspace<E: Element> {
    pub(super) threads: Vec<ThreadWorkspace<E>>,
}

impl<E: Element> Workspace<E> {
    /// Creates a workspace for this many threads (at least 1). Products that need more memory than
    /// there is take it from `allocator`.
    pub fn new(allocator: &Allocator, threads: usize) -> Self {
        Self::with_kernel(allocator, threads, kernels::best::<E>())
    }

    /// Creates a workspace with all memory that these products need: they allocate nothing.
    pub fn for_products(allocator: &Allocator, threads: usize, products: &[Extent]) -> Self {
        let mut workspace = Self::new(allocator, threads);
        let threads = workspace.threads.len();
        let sizes = buffer_sizes::<E>(products, workspace.kernel(), threads);
        workspace.threads.iter_mut().zip(sizes).for_each(|(thread, sizes)| thread.reserve(sizes));
        workspace
    }

    /// Creates a workspace like [`new`](Self::new), for the given micro-kernel instead of the best.
    pub(in crate::ops) fn with_kernel(
        allocator: &Allocator,
        threads: usize,
        kernel: &'static Kernel<E::Wide>,
    ) -> Self {
        let threads = (0..threads.max(1)).map(|_| ThreadWorkspace::new(allocator, kernel));
        Self { threads: threads.collect() }
    }

    /// The micro-kernel of all its products.
    pub(in crate::ops) fn kernel(&self) -> &'static Kernel<E::Wide> {
        self.threads[0].kernel
    }

    /// Size in bytes, so far.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.threads.iter().map(ThreadWorkspace::bytes).sum()
    }
}
