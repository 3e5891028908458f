//! A pass that adds a bias, where a product has no epilogue for it.
#![allow(unsafe_code)] // launches

use device::cuda::{Cuda, Error, Grid, Kernel};
use device::{View, ViewMut};

use crate::ops::kernels::{self, CudaElement};

/// The compiled kernel.
#[derive(Debug)]
pub(crate) struct AddBias {
    kernel: Kernel,
    blocks_max: usize,
}

impl AddBias {
    pub(crate) fn new<E: CudaElement>(device: &Cuda) -> Result<Self, Error> {
        let module = kernels::load(device, &kernels::BIAS, E::FORMAT)?;
        Ok(Self { kernel: module.kernel("add_bias")?, blocks_max: kernels::blocks_max(device) })
    }

    /// Adds a bias (O) to each row of `y` (N, O).
    pub(crate) fn add<E: CudaElement>(
        &self,
        y: &mut ViewMut<'_, E>,
        bias: View<'_, E>,
    ) -> Result<(), Error> {
        let [elements, width] = [y.len(), bias.len()];
        assert!(width.is_multiple_of(8), "{width} outputs, a multiple of 8");
        assert!(elements.is_multiple_of(width), "{elements} elements are rows of {width}");
        let grid = Grid::covering(elements / E::PACK, 256, self.blocks_max);
        // SAFETY: add_bias(y, bias, elements, width), which strides over the elements.
        unsafe { self.kernel.launch(grid).updates(y).reads(bias).long(elements).int(width).run() }
    }
}
