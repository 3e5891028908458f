//! Sums over rows in two steps: parts of the rows, then the parts in their order.
#![allow(unsafe_code)] // launches

use device::cuda::{Cuda, Error, Grid, Kernel};
use device::{Allocator, DeviceBuffer, View, ViewMut};

use crate::ops::kernels::{self, CudaElement};

/// Most parts that rows are divided into: a few blocks for each multiprocessor of a large device.
/// With the other two numbers it fixes the order of every sum, whatever the device.
const PARTS_MAX: usize = 512;
/// Rows of a part, if there are not enough for [`PARTS_MAX`] parts.
const ROWS_MIN: usize = 32;
/// Most blocks that sum columns. More parts than that would only be more partial sums to add.
const BLOCKS_MAX: usize = 2048;
/// Columns of such a block.
const BLOCK_COLUMNS: usize = 64;

/// The partial sums of all parts: of a norm, or of the columns of a matrix.
#[derive(Debug)]
pub(crate) struct Partials {
    sums: DeviceBuffer<f32>,
}

/// The partial sums (parts, C) that backward of a norm writes: those of its parameters' gradients,
/// and in LayerNorm of what dx is then.
#[derive(Debug)]
pub(crate) struct NormPartials<'a> {
    pub(crate) weight: ViewMut<'a, f32>,
    pub(crate) bias: ViewMut<'a, f32>,
    pub(crate) dx: ViewMut<'a, f32>,
}

/// The compiled kernels.
#[derive(Debug)]
pub(crate) struct ColumnSums {
    partials: Kernel,
    sums: Kernel,
}

/// Parts that so many rows are divided into where a block has all columns of a part.
fn parts(rows: usize) -> usize {
    rows.div_ceil(ROWS_MIN).clamp(1, PARTS_MAX)
}

/// Parts that so many rows are divided into where a block has some columns of a part.
fn parts_of_columns(rows: usize, width: usize) -> usize {
    parts(rows).min((BLOCKS_MAX / width.div_ceil(BLOCK_COLUMNS)).max(1))
}

impl Partials {
    /// Allocates sums for up to `rows` rows: of norms of `norm_width` columns, and of matrices of
    /// up to `width_max`.
    pub(crate) fn new(
        allocator: &Allocator,
        rows: usize,
        norm_width: usize,
        width_max: usize,
    ) -> Self {
        let of_norm = 3 * parts(rows) * norm_width;
        let of_columns = (BLOCKS_MAX * BLOCK_COLUMNS).min(parts(rows) * width_max).max(width_max);
        Self { sums: allocator.zeros(of_norm.max(of_columns)) }
    }

    /// The partial sums of a norm of `rows` rows.
    pub(crate) fn of_norm(&mut self, rows: usize, width: usize) -> NormPartials<'_> {
        let elements = parts(rows) * width;
        let all = self.sums.view_mut().slice(0..3 * elements);
        let (weight, others) = all.split_at(elements);
        let (bias, dx) = others.split_at(elements);
        NormPartials { weight, bias, dx }
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
        let parts = parts_of_columns(rows, width);
        let mut partials = partials.sums.view_mut().slice(0..parts * width);
        let grid = Grid::of([width.div_ceil(BLOCK_COLUMNS), parts, 1], 256);
        let launch = self.partials.launch(grid).writes(&mut partials).reads(x);
        // SAFETY: column_partials(partials, x, rows, width), parts along y.
        unsafe { launch.int(rows).int(width).run() }?;
        self.add_up(sums, partials.as_view(), accumulate)
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
        let launch = self.sums.launch(Grid::row(width.div_ceil(32), 512));
        let launch = if accumulate { launch.updates(&mut sums) } else { launch.writes(&mut sums) };
        let launch = launch.reads(partials).int(parts).int(width);
        // SAFETY: column_sums(sums, partials, parts, width, accumulate); the lengths were checked.
        unsafe { launch.flag(accumulate).run() }
    }
}
