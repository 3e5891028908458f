//! A block for each row.
#![allow(unsafe_code)] // launches

use device::ViewMut;
use device::cuda::{Cuda, Error, Grid, Kernel};

use super::{Direction, Shape, Tables};
use crate::ops::kernels::{self, CudaElement};

/// The compiled kernel.
#[derive(Debug)]
pub(crate) struct Rope {
    rotate: Kernel,
}

impl Rope {
    pub(crate) fn new<E: CudaElement>(device: &Cuda) -> Result<Self, Error> {
        let module = kernels::load(device, &kernels::ROPE, E::FORMAT)?;
        Ok(Self { rotate: module.kernel("rotate")? })
    }

    /// Rotates the first heads of every row of `qkv` (B T, (H + 2 K) D) in place.
    pub(crate) fn rotate<E: CudaElement>(
        &self,
        mut qkv: ViewMut<'_, E>,
        tables: &Tables<f32>,
        shape: Shape,
        direction: Direction,
    ) -> Result<(), Error> {
        let Tables { cosine, sine, pairs } = tables;
        let tokens = cosine.len() / pairs;
        let rows = qkv.len() / shape.columns;
        assert!(qkv.len().is_multiple_of(tokens * shape.columns), "qkv of {shape:?}");
        assert!(shape.heads * 2 * pairs <= shape.columns, "{shape:?} of width {}", 2 * pairs);
        let sign = match direction {
            Direction::Forward => 1.0,
            Direction::Backward => -1.0,
        };
        let rotated = rows * shape.heads * 2 * pairs;
        let launch = self.rotate.launch(Grid::row(rows, 128)).updates_part(&mut qkv, rotated);
        let launch = launch.reads(cosine.view()).reads(sine.view()).int(rows).int(tokens);
        let launch = launch.int(shape.columns).int(shape.heads).int(*pairs).float(sign);
        // SAFETY: rotate(x, cosine, sine, rows, sequence tokens, columns, heads, pairs, direction);
        // the lengths were checked.
        unsafe { launch.run() }
    }
}
