//! One pass; forward's and the gradient's are epilogues of products.
#![allow(unsafe_code)] // launches

use device::cuda::{Cuda, Error, Grid, Kernel};
use device::{View, ViewMut};

use crate::ops::kernels::{self, CudaElement};

/// The compiled kernel.
#[derive(Debug)]
pub(crate) struct Gelu {
    gelu: Kernel,
    blocks_max: usize,
}

impl Gelu {
    pub(crate) fn new<E: CudaElement>(device: &Cuda) -> Result<Self, Error> {
        let module = kernels::load(device, &kernels::GELU, E::FORMAT)?;
        Ok(Self { gelu: module.kernel("gelu")?, blocks_max: kernels::blocks_max(device) })
    }

    /// Writes GELU of each element.
    pub(crate) fn forward<E: CudaElement>(
        &self,
        mut y: ViewMut<'_, E>,
        x: View<'_, E>,
    ) -> Result<(), Error> {
        let elements = x.len();
        assert_eq!(y.len(), elements, "as many outputs as inputs");
        assert!(elements.is_multiple_of(8), "{elements} elements, a multiple of 8");
        let grid = Grid::covering(elements / E::PACK, 256, self.blocks_max);
        // SAFETY: gelu(y, x, elements), which strides over the elements.
        unsafe { self.gelu.launch(grid).writes(&mut y).reads(x).long(elements).run() }
    }
}
