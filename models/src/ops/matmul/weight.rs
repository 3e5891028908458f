//! Weights in panels, packed once for all products of a step.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::kernel::Kernel;
use super::pack::{self, aligned, room};
use super::product::Right;
use super::strided::Strided;
use crate::ops::{Element, Float};

/// How a product reads a weight W (O, I) as its right operand (k, n).
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) enum Form {
    /// W^T (I, O), for Y.
    Forward,
    /// W (O, I), for dX.
    Backward,
}

impl Form {
    /// k and n.
    fn shape(self, (outputs, inputs): (usize, usize)) -> (usize, usize) {
        match self {
            Self::Forward => (inputs, outputs),
            Self::Backward => (outputs, inputs),
        }
    }

    fn of<E: Element>(self, weight: &[E], (outputs, inputs): (usize, usize)) -> Strided<E> {
        assert_eq!(weight.len(), outputs * inputs, "W (O, I) = ({outputs}, {inputs})");
        let rows = Strided::dense(weight, inputs);
        match self {
            Self::Forward => rows.transposed(),
            Self::Backward => rows,
        }
    }
}

/// One form of a weight in panels over all of k, packed by the first product that reads it.
#[derive(Debug)]
pub(in crate::ops) struct Panels<E: Element> {
    form: Form,
    /// O and I.
    shape: (usize, usize),
    kernel: &'static Kernel<E::Wide>,
    cells: Vec<E::Wide>,
    is_packed: bool,
}

impl<E: Element> Panels<E> {
    /// Room for a form of a weight (O, I).
    pub(in crate::ops) fn new(
        form: Form,
        shape: (usize, usize),
        kernel: &'static Kernel<E::Wide>,
    ) -> Self {
        let cells = room(cells(form.shape(shape), kernel));
        Self { form, shape, kernel, cells, is_packed: false }
    }

    /// Bytes of such panels for the best kernels, without making them.
    pub(in crate::ops) fn planned_bytes(form: Form, shape: (usize, usize)) -> usize {
        pack::room_len::<E::Wide>(cells(form.shape(shape), E::kernel())) * size_of::<E::Wide>()
    }

    /// The weight changes: the next product packs it anew.
    pub(in crate::ops) fn expire(&mut self) {
        self.is_packed = false;
    }

    /// Packs the weight, which `source` reads in this form.
    fn pack(&mut self, source: Strided<E>) {
        let (kernel, (k, columns)) = (self.kernel, self.form.shape(self.shape));
        let panel = kernel.panel();
        let room = &mut aligned(&mut self.cells)[..cells((k, columns), kernel)];
        let rooms = room.par_chunks_mut(kernel.steps(k) * panel);
        rooms.enumerate().for_each(|(index, room)| {
            let first = index * panel;
            let (source, width) = (source.offset(0, first), panel.min(columns - first));
            // SAFETY: columns of a weight that is borrowed and as long as its shape says.
            unsafe { pack::right(room, source, (k, width), kernel) };
        });
        self.is_packed = true;
    }
}

/// The right operand that a form of a weight (O, I) is: its panels, or else the weight as it is.
pub(in crate::ops) fn right<E: Element>(
    form: Form,
    (weight, shape): (&[E], (usize, usize)),
    panels: Option<&mut Panels<E>>,
    kernel: &Kernel<E::Wide>,
) -> Right<E> {
    let plain = form.of(weight, shape);
    let Some(panels) = panels else { return Right::Plain(plain) };
    assert_eq!((panels.shape, panels.kernel.name), (shape, kernel.name), "panels of this weight");
    if !panels.is_packed {
        panels.pack(plain);
    }
    Right::Packed(aligned(&mut panels.cells).as_ptr())
}

/// Cells of a right operand (k, n) in panels.
fn cells<W: Float>((k, columns): (usize, usize), kernel: &Kernel<W>) -> usize {
    kernel.steps(k) * columns.next_multiple_of(kernel.lanes)
}

/// Both forms of a weight (O, I) in panels, kept from one product to the next.
#[derive(Debug)]
pub struct PackedWeight<E: Element> {
    forward: Panels<E>,
    backward: Panels<E>,
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
        let panels = |form| Panels::new(form, (outputs, inputs), kernel);
        Self { forward: panels(Form::Forward), backward: panels(Form::Backward) }
    }

    /// The weight changes: the next product of each form packs it anew.
    pub fn expire(&mut self) {
        self.forward.expire();
        self.backward.expire();
    }

    /// Bytes of one, without making it.
    pub fn planned_bytes(outputs: usize, inputs: usize) -> usize {
        let bytes = |form| Panels::<E>::planned_bytes(form, (outputs, inputs));
        bytes(Form::Forward) + bytes(Form::Backward)
    }
}

/// A weight (O, I), row-major, and where its panels are kept between products. Where they are not,
/// every product packs it block by block as it goes along. The bits are the same.
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
    pub(super) fn right(
        self,
        form: Form,
        shape: (usize, usize),
        kernel: &Kernel<E::Wide>,
    ) -> Right<E> {
        let panels = self.packed.map(|packed| match form {
            Form::Forward => &mut packed.forward,
            Form::Backward => &mut packed.backward,
        });
        right(form, (self.rows, shape), panels, kernel)
    }
}
