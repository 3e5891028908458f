//! Room in which products work.

use super::cut::{self, Extent, RoomCells};
use super::kernel::Kernel;
use super::pack::{aligned, room, room_len};
use crate::ops::{Element, Float};

/// Room for one packed block of each operand of a product, or for two where the next is packed
/// beside products, and for its sums: as much as the products so far took.
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
        Self { kernel, left: Vec::new(), right: Vec::new(), sums: Vec::new() }
    }

    fn bytes(&self) -> usize {
        (self.left.len() + self.right.len() + self.sums.len()) * size_of::<E::Wide>()
    }

    /// Allocates what is missing: nothing once every product has run.
    pub(super) fn make_room(&mut self, cells: RoomCells) {
        at_least(&mut self.left, cells.left);
        at_least(&mut self.right, cells.right);
        at_least(&mut self.sums, cells.sums);
    }

    /// All rooms, each from a cache line on.
    pub(super) fn rooms(&mut self) -> Rooms<'_, E::Wide> {
        let Self { left, right, sums, .. } = self;
        Rooms { left: aligned(left), right: aligned(right), sums: aligned(sums) }
    }
}

fn at_least<W: Float>(cells: &mut Vec<W>, needed: usize) {
    if needed > 0 && cells.len() < room_len::<W>(needed) {
        *cells = Vec::new(); // before there is more, and nothing is copied
        *cells = room(needed);
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
    /// For this many threads (at least 1). Room is made by products that need more than there is.
    pub fn new(threads: usize) -> Self {
        Self::with_kernel(threads, E::kernel())
    }

    /// The same with room for these products.
    pub fn for_products(threads: usize, products: &[Extent]) -> Self {
        let mut workspace = Self::new(threads);
        let threads = workspace.packs.len();
        let rooms = cut::rooms::<E>(products, E::kernel(), threads);
        workspace.packs.iter_mut().zip(rooms).for_each(|(packs, cells)| packs.make_room(cells));
        workspace
    }

    /// The same for other micro-kernels than the best.
    pub(crate) fn with_kernel(threads: usize, kernel: &'static Kernel<E::Wide>) -> Self {
        Self { packs: (0..threads.max(1)).map(|_| Packs::new(kernel)).collect() }
    }

    /// Size in bytes, so far.
    pub fn bytes(&self) -> usize {
        self.packs.iter().map(Packs::bytes).sum()
    }

    /// Size in bytes with room for these products, without making it.
    pub fn planned_bytes(threads: usize, products: &[Extent]) -> usize {
        let rooms = cut::rooms::<E>(products, E::kernel(), threads.max(1));
        rooms.map(RoomCells::bytes::<E::Wide>).sum()
    }
}
