//! One pass over all elements, where a product has no epilogue for it.
#![allow(unsafe_code)] // launches

use device::cuda::{Cuda, Error, Grid, Kernel};
use device::{View, ViewMut};

use crate::ops::kernels::{self, CudaElement};

/// The compiled kernels.
#[derive(Debug)]
pub(crate) struct Gelu {
    forward: Kernel,
    backward: Kernel,
    blocks_max: usize,
}

impl Gelu {
    pub(crate) fn new<E: CudaElement>(device: &Cuda) -> Result<Self, Error> {
        let module = kernels::load(device, &kernels::GELU, E::FORMAT)?;
        Ok(Self {
            forward: module.kernel("gelu")?,
            backward: module.kernel("gelu_backward")?,
            blocks_max: kernels::blocks_max(device),
        })
    }

    /// Writes GELU of each element.
    pub(crate) fn forward<E: CudaElement>(
        &self,
        mut y: ViewMut<'_, E>,
        x: View<'_, E>,
    ) -> Result<(), Error> {
        let grid = self.grid::<E>(y.len(), x.len());
        // SAFETY: gelu(y, x, elements), which strides over the elements.
        unsafe { self.forward.launch(grid).writes(&mut y).reads(x).long(x.len()).run() }
    }

    /// Replaces each element by its GELU.
    pub(crate) fn in_place<E: CudaElement>(&self, mut x: ViewMut<'_, E>) -> Result<(), Error> {
        let grid = self.grid::<E>(x.len(), x.len());
        let elements = x.len();
        let launch = self.forward.launch(grid).writes(&mut x).writes(&mut x);
        // SAFETY: as above; a thread reads its elements before it writes them.
        unsafe { launch.long(elements).run() }
    }

    /// Multiplies each gradient by the slope of GELU at `x`.
    pub(crate) fn backward<E: CudaElement>(
        &self,
        mut dy: ViewMut<'_, E>,
        x: View<'_, E>,
    ) -> Result<(), Error> {
        let grid = self.grid::<E>(dy.len(), x.len());
        // SAFETY: gelu_backward(dy, x, elements), which strides over the elements.
        unsafe { self.backward.launch(grid).updates(&mut dy).reads(x).long(x.len()).run() }
    }

    fn grid<E: CudaElement>(&self, outputs: usize, elements: usize) -> Grid {
        assert_eq!(outputs, elements, "as many outputs as inputs");
        assert!(elements.is_multiple_of(8), "{elements} elements, a multiple of 8");
        Grid::covering(elements / E::PACK, 256, self.blocks_max)
    }
}
