//! Sums over rows in two steps: parts of the rows, then the parts in their order.
#![allow(unsafe_code)] // launches

use device::cuda::{Cuda, Error, Grid, Kernel};
use device::{Allocator, DeviceBuffer, View, ViewMut};

use crate::ops::kernels::{self, CudaElement};

/// Most parts that rows are divided into. With [`ROWS_MIN`] it fixes the order of every sum,
/// whatever the device.
const PARTS_MAX: usize = 256;
/// Rows of a part, if there are not enough for [`PARTS_MAX`] parts.
const ROWS_MIN: usize = 32;

/// The partial sums of all parts, of two sums at once.
#[derive(Debug)]
pub(crate) struct Partials {
    sums: DeviceBuffer<f32>,
}

/// The compiled kernels.
#[derive(Debug)]
pub(crate) struct ColumnSums {
    partials: Kernel,
    sums: Kernel,
}

/// Parts that so many rows are divided into.
pub(crate) fn parts(rows: usize) -> usize {
    rows.div_ceil(ROWS_MIN).clamp(1, PARTS_MAX)
}

impl Partials {
    /// For up to `rows` rows of up to `width` columns.
    pub(crate) fn new(allocator: &Allocator, rows: usize, width: usize) -> Self {
        Self { sums: allocator.zeros(2 * parts(rows) * width) }
    }

    /// The partial sums (parts, C) of two sums.
    pub(crate) fn two(
        &mut self,
        parts: usize,
        width: usize,
    ) -> (ViewMut<'_, f32>, ViewMut<'_, f32>) {
        let sums = self.sums.view_mut().slice(0..2 * parts * width);
        sums.split_at(parts * width)
    }
}

impl ColumnSums {
    pub(crate) fn new<E: CudaElement>(device: &Cuda) -> Result<Self, Error> {
        let module = kernels::load(device, &kernels::ROW_SUMS, E::FORMAT)?;
        Ok(Self {
            partials: module.kernel("column_partials")?,
            sums: module.kernel("column_sums")?,
        })
    }

    /// Writes the sums of the columns of `x` (N, C) to `sums` (C), or adds them.
    pub(crate) fn of<E: CudaElement>(
        &self,
        sums: ViewMut<'_, f32>,
        x: View<'_, E>,
        partials: &mut Partials,
        accumulate: bool,
    ) -> Result<(), Error> {
        let width = sums.len();
        let rows = x.len() / width;
        assert_eq!(x.len(), rows * width, "rows of {width} columns");
        let parts = parts(rows);
        let (mut first, _) = partials.two(parts, width);
        let grid = Grid::of([width.div_ceil(64), parts, 1], 256);
        let launch = self.partials.launch(grid).writes(&mut first).reads(x);
        // SAFETY: column_partials(partials, x, rows, width), parts along y.
        unsafe { launch.int(rows).int(width).run() }?;
        self.add_up(sums, first.as_view(), accumulate)
    }

    /// Writes the sums of partial sums (parts, C), or adds them.
    pub(crate) fn add_up(
        &self,
        mut sums: ViewMut<'_, f32>,
        partials: View<'_, f32>,
        accumulate: bool,
    ) -> Result<(), Error> {
        let width = sums.len();
        let parts = partials.len() / width;
        assert_eq!(partials.len(), parts * width, "parts of {width} columns");
        let launch = self.sums.launch(Grid::row(width.div_ceil(128), 128));
        let launch = launch.writes(&mut sums).reads(partials).int(parts).int(width);
        // SAFETY: column_sums(sums, partials, parts, width, accumulate); the lengths were checked.
        unsafe { launch.flag(accumulate).run() }
    }
}
