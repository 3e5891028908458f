//! One pass forward, and one backward.
#![allow(unsafe_code)] // launches

use device::cuda::{Cuda, Error, Grid, Kernel};
use device::{View, ViewMut};

use crate::ops::kernels::{self, CudaElement};

/// The compiled kernels.
#[derive(Debug)]
pub(crate) struct SwiGlu {
    forward: Kernel,
    backward: Kernel,
    blocks_max: usize,
}

impl SwiGlu {
    pub(crate) fn new<E: CudaElement>(device: &Cuda) -> Result<Self, Error> {
        let module = kernels::load(device, &kernels::SWIGLU, E::FORMAT)?;
        Ok(Self {
            forward: module.kernel("swiglu_forward")?,
            backward: module.kernel("swiglu_backward")?,
            blocks_max: kernels::blocks_max(device),
        })
    }

    /// Writes `hidden` (N, F) from `gate_up` (N, 2 F).
    pub(crate) fn forward<E: CudaElement>(
        &self,
        mut hidden: ViewMut<'_, E>,
        gate_up: View<'_, E>,
        width: usize,
    ) -> Result<(), Error> {
        let elements = hidden.len();
        assert_eq!(gate_up.len(), 2 * elements, "gate and up for each element");
        let launch = self.forward.launch(self.grid::<E>(elements)).writes(&mut hidden);
        // SAFETY: swiglu_forward(y, gate_up, rows, width), which strides over the elements.
        unsafe { launch.reads(gate_up).long(elements / width).int(width).run() }
    }

    /// Replaces `gate_up` (N, 2 F) by its gradient, from `dhidden` (N, F).
    pub(crate) fn backward<E: CudaElement>(
        &self,
        mut gate_up: ViewMut<'_, E>,
        dhidden: View<'_, E>,
        width: usize,
    ) -> Result<(), Error> {
        let elements = dhidden.len();
        assert_eq!(gate_up.len(), 2 * elements, "gate and up for each element");
        let launch = self.backward.launch(self.grid::<E>(elements)).updates(&mut gate_up);
        // SAFETY: swiglu_backward(gate_up, dy, rows, width), which strides over the elements.
        unsafe { launch.reads(dhidden).long(elements / width).int(width).run() }
    }

    fn grid<E: CudaElement>(&self, elements: usize) -> Grid {
        Grid::covering(elements / E::PACK, 256, self.blocks_max)
    }
}
