//! Weights in panels, packed once for all products of a step.

#![allow(unsafe_code)]

use device::{Allocator, DeviceBuffer};
use rayon::prelude::*;

use super::right::{Right, pack_right};
use crate::ops::matmul::kernels;
use crate::ops::matmul::tile::{Kernel, Strided};
use crate::ops::{Element, Float};

/// O and I of a weight W (O, I).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops) struct WeightShape {
    /// O.
    pub(in crate::ops) outputs: usize,
    /// I.
    pub(in crate::ops) inputs: usize,
}

/// How a product reads a weight W (O, I) as its right operand (k, n).
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) enum Form {
    /// W^T (I, O), for Y.
    Forward,
    /// W (O, I), for dX.
    Backward,
}

impl Form {
    fn k(self, shape: WeightShape) -> usize {
        match self {
            Self::Forward => shape.inputs,
            Self::Backward => shape.outputs,
        }
    }

    fn n(self, shape: WeightShape) -> usize {
        match self {
            Self::Forward => shape.outputs,
            Self::Backward => shape.inputs,
        }
    }

    fn of<E: Element>(self, weight: &[E], shape: WeightShape) -> Strided<E> {
        assert_eq!(weight.len(), shape.outputs * shape.inputs, "W (O, I) of {shape:?}");
        let rows = Strided::dense(weight, shape.inputs);
        match self {
            Self::Forward => rows.transposed(),
            Self::Backward => rows,
        }
    }

    /// Packed elements of a weight in this form.
    fn packed_len<W: Float>(self, shape: WeightShape, kernel: &Kernel<W>) -> usize {
        kernel.steps(self.k(shape)) * self.n(shape).next_multiple_of(kernel.lanes)
    }
}

/// One form of a weight in panels over all of k, packed by the first product that reads it.
#[derive(Debug)]
pub(in crate::ops) struct PackedForm<E: Element> {
    form: Form,
    shape: WeightShape,
    kernel: &'static Kernel<E::Wide>,
    panels: DeviceBuffer<E::Wide>,
    is_packed: bool,
}

impl<E: Element> PackedForm<E> {
    /// For a form of a weight of this shape.
    pub(in crate::ops) fn new(
        allocator: &Allocator,
        form: Form,
        shape: WeightShape,
        kernel: &'static Kernel<E::Wide>,
    ) -> Self {
        let panels = allocator.zeros(form.packed_len(shape, kernel));
        Self { form, shape, kernel, panels, is_packed: false }
    }

    /// The weight changes: the next product packs it anew.
    pub(in crate::ops) fn expire(&mut self) {
        self.is_packed = false;
    }

    /// Packs the weight, which `source` reads in this form.
    fn pack(&mut self, source: Strided<E>) {
        let kernel = self.kernel;
        let k = self.form.k(self.shape);
        let n = self.form.n(self.shape);
        let panel_columns = kernel.panel_columns();
        let panels = self.panels.host_mut().par_chunks_mut(kernel.steps(k) * panel_columns);
        panels.enumerate().for_each(|(index, panel)| {
            let first = index * panel_columns;
            let columns = panel_columns.min(n - first);
            // SAFETY: columns of a weight that is borrowed and as long as its shape says.
            unsafe { pack_right(panel, source.offset(0, first), k, columns, kernel) };
        });
        self.is_packed = true;
    }
}

/// A form of a weight as a right operand: packed where panels are kept for it, else as it is.
pub(in crate::ops) fn right_operand<E: Element>(
    form: Form,
    weight: &[E],
    shape: WeightShape,
    packed: Option<&mut PackedForm<E>>,
    kernel: &Kernel<E::Wide>,
) -> Right<E> {
    let unpacked = form.of(weight, shape);
    let Some(packed) = packed else { return Right::Unpacked(unpacked) };
    assert_eq!((packed.shape, packed.kernel.name), (shape, kernel.name), "panels of this weight");
    if !packed.is_packed {
        packed.pack(unpacked);
    }
    Right::Packed(packed.panels.host().as_ptr())
}

/// Both forms of a weight (O, I) in panels, kept from one product to the next.
#[derive(Debug)]
pub struct PackedWeight<E: Element> {
    forward: PackedForm<E>,
    backward: PackedForm<E>,
}

impl<E: Element> PackedWeight<E> {
    /// For a weight of this shape.
    pub fn new(allocator: &Allocator, outputs: usize, inputs: usize) -> Self {
        Self::with_kernel(allocator, WeightShape { outputs, inputs }, kernels::best::<E>())
    }

    /// The same for other micro-kernels than the best.
    pub(in crate::ops) fn with_kernel(
        allocator: &Allocator,
        shape: WeightShape,
        kernel: &'static Kernel<E::Wide>,
    ) -> Self {
        let form = |form| PackedForm::new(allocator, form, shape, kernel);
        Self { forward: form(Form::Forward), backward: form(Form::Backward) }
    }

    /// The weight changes: the next product of each form packs it anew.
    pub fn expire(&mut self) {
        self.forward.expire();
        self.backward.expire();
    }
}

/// A weight (O, I), row-major, and where its panels are kept between products. Where they are not,
/// every product packs it block by block. The bits are the same.
#[derive(Debug)]
pub struct Weight<'a, E: Element> {
    /// Its elements.
    pub rows: &'a [E],
    /// Its panels.
    pub packed: Option<&'a mut PackedWeight<E>>,
}

impl<'a, E: Element> From<&'a [E]> for Weight<'a, E> {
    fn from(rows: &'a [E]) -> Self {
        Self { rows, packed: None }
    }
}

impl<'a, E: Element> From<&'a Vec<E>> for Weight<'a, E> {
    fn from(rows: &'a Vec<E>) -> Self {
        rows.as_slice().into()
    }
}

impl<E: Element> Weight<'_, E> {
    /// The right operand of a product.
    pub(in crate::ops::matmul) fn right(
        self,
        form: Form,
        shape: WeightShape,
        kernel: &Kernel<E::Wide>,
    ) -> Right<E> {
        let packed = self.packed.map(|packed| match form {
            Form::Forward => &mut packed.forward,
            Form::Backward => &mut packed.backward,
        });
        right_operand(form, self.rows, shape, packed, kernel)
    }
}
