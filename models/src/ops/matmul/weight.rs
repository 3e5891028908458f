//! Weights packed once for all products of a step.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::kernel::Kernel;
use super::pack::{self, aligned, room};
use super::product::Right;
use super::strided::Strided;
use crate::ops::Element;

/// A weight (O, I) in the forms in which both products of a linear layer read it.
#[derive(Debug)]
pub struct PackedWeight<E: Element> {
    kernel: &'static Kernel<E::Wide>,
    outputs: usize,
    inputs: usize,
    /// W^T (I, O) and W (O, I) in panels.
    forward: Vec<E::Wide>,
    backward: Vec<E::Wide>,
}

impl<E: Element> PackedWeight<E> {
    /// Room for a weight of this shape.
    pub fn new(outputs: usize, inputs: usize) -> Self {
        Self::with_kernel(outputs, inputs, E::kernel())
    }

    /// The same for other micro-kernels than the best.
    pub(crate) fn with_kernel(
        outputs: usize,
        inputs: usize,
        kernel: &'static Kernel<E::Wide>,
    ) -> Self {
        let forward = room(cells(kernel, inputs, outputs));
        let backward = room(cells(kernel, outputs, inputs));
        Self { kernel, outputs, inputs, forward, backward }
    }

    /// Packs `weight` (O, I).
    ///
    /// # Panics
    /// When `weight` has another length.
    pub fn pack(&mut self, weight: &[E]) {
        let Self { kernel, outputs, inputs, forward, backward } = self;
        let (kernel, outputs, inputs) = (*kernel, *outputs, *inputs);
        assert_eq!(weight.len(), outputs * inputs, "W (O, I) = ({outputs}, {inputs})");
        let weight = Strided::dense(weight, inputs);
        panels(forward, weight.transposed(), (inputs, outputs), kernel);
        panels(backward, weight, (outputs, inputs), kernel);
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        (self.forward.len() + self.backward.len()) * size_of::<E::Wide>()
    }
}

/// Cells of `k` x `columns` in panels.
fn cells<W: crate::ops::Float>(kernel: &Kernel<W>, k: usize, columns: usize) -> usize {
    k.div_ceil(kernel.group) * columns.next_multiple_of(kernel.lanes)
}

/// Packs all panels of a right operand (k, columns).
fn panels<E: Element>(
    room: &mut [E::Wide],
    source: Strided<E>,
    (k, columns): (usize, usize),
    kernel: &Kernel<E::Wide>,
) {
    let room = &mut aligned(room)[..cells(kernel, k, columns)];
    let panel = kernel.panel();
    room.par_chunks_mut(k.div_ceil(kernel.group) * panel).enumerate().for_each(|(index, room)| {
        let first = index * panel;
        let source = source.offset(0, first);
        // SAFETY: the caller's weight is readable over k and the columns.
        unsafe { pack::right(room, source, (k, panel.min(columns - first)), kernel) };
    });
}

/// A weight (O, I): as it is, or packed.
#[derive(Debug, Clone, Copy)]
pub enum Weight<'a, E: Element> {
    /// Row-major; packed block by block in every product.
    Rows(&'a [E]),
    /// Packed before.
    Packed(&'a PackedWeight<E>),
}

impl<'a, E: Element> From<&'a [E]> for Weight<'a, E> {
    fn from(rows: &'a [E]) -> Self {
        Self::Rows(rows)
    }
}

impl<'a, E: Element> From<&'a Vec<E>> for Weight<'a, E> {
    fn from(rows: &'a Vec<E>) -> Self {
        Self::Rows(rows)
    }
}

impl<'a, E: Element> From<&'a PackedWeight<E>> for Weight<'a, E> {
    fn from(weight: &'a PackedWeight<E>) -> Self {
        Self::Packed(weight)
    }
}

impl<E: Element> Weight<'_, E> {
    /// W^T (I, O), for forward.
    pub(super) fn forward(self, inputs: usize, kernel: &Kernel<E::Wide>) -> Right<E> {
        match self {
            Self::Rows(rows) => Right::Plain(Strided::dense(rows, inputs).transposed()),
            Self::Packed(weight) => weight.right(&weight.forward, kernel),
        }
    }

    /// W (O, I), for the gradient of the input.
    pub(super) fn backward(self, inputs: usize, kernel: &Kernel<E::Wide>) -> Right<E> {
        match self {
            Self::Rows(rows) => Right::Plain(Strided::dense(rows, inputs)),
            Self::Packed(weight) => weight.right(&weight.backward, kernel),
        }
    }

    /// Checks the dimensions.
    pub(super) fn check(self, outputs: usize, inputs: usize) {
        match self {
            Self::Rows(rows) => {
                assert_eq!(rows.len(), outputs * inputs, "W (O, I) = ({outputs}, {inputs})");
            }
            Self::Packed(weight) => {
                assert_eq!((weight.outputs, weight.inputs), (outputs, inputs), "W (O, I)");
            }
        }
    }
}

impl<E: Element> PackedWeight<E> {
    fn right(&self, room: &[E::Wide], kernel: &Kernel<E::Wide>) -> Right<E> {
        assert_eq!(self.kernel.name, kernel.name, "a weight packed for the kernels in use");
        let start = room.as_ptr();
        Right::Packed(start.wrapping_add(pack::misalignment(start)))
    }
}
