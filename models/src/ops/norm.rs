//! What the kernels of both norms have in common.

use device::cuda::Grid;
use device::{View, ViewMut};

use super::kernels::CudaElement;

/// What a norm is applied to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NormShape {
    /// N.
    pub(crate) rows: usize,
    /// C.
    pub(crate) width: usize,
}

/// The operands of a norm's backward.
#[derive(Debug)]
pub(crate) struct NormBackward<'a, E: CudaElement> {
    /// (N, C): the gradient of the input.
    pub(crate) dx: ViewMut<'a, E>,
    /// Whether `dx` is added to; else it is written.
    pub(crate) accumulate: bool,
    /// (N, C): the gradient of the output.
    pub(crate) dy: View<'a, E>,
    /// What forward read and saved.
    pub(crate) saved: NormSaved<'a, E>,
    /// (C).
    pub(crate) weight: View<'a, E>,
}

/// What backward needs of a norm's forward.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NormSaved<'a, E: CudaElement> {
    /// (N, C).
    pub(crate) input: View<'a, E>,
    /// (N, 1 or 2).
    pub(crate) stats: View<'a, f32>,
}

impl NormShape {
    /// A warp for each row, four in a block.
    pub(crate) fn grid(self) -> Grid {
        Grid::row(self.rows.div_ceil(4), 128)
    }

    /// Panics unless matrices are (N, C) and statistics (N, `stats_per_row`).
    pub(crate) fn check(self, matrices: &[usize], stats: usize, stats_per_row: usize) {
        let expected = self.rows * self.width;
        assert!(matrices.iter().all(|&len| len == expected), "{matrices:?} elements of {self:?}");
        assert_eq!(stats, self.rows * stats_per_row, "statistics of {self:?}");
    }
}

impl<E: CudaElement> NormBackward<'_, E> {
    /// Panics unless all lengths are those of a shape.
    pub(crate) fn check(&self, shape: NormShape, stats_per_row: usize) {
        let NormSaved { input, stats } = self.saved;
        shape.check(&[self.dx.len(), self.dy.len(), input.len()], stats.len(), stats_per_row);
        assert_eq!(self.weight.len(), shape.width, "weight (C) of {shape:?}");
    }
}
