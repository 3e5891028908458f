//! Attention by one of three implementations, chosen once: flash attention on tensor cores where
//! possible, the plain kernels for everything else, or flash attention by Hopper's instructions
//! where the user asks for it.
#![allow(unsafe_code)] // launches

mod flash;
mod launch;
mod plain;

use device::cuda::{Cuda, Error, Kernel};
use device::{View, ViewMut};

use super::Shape;
use crate::ops::kernels::CudaElement;
use flash::Flash;
use plain::Plain;

/// The widest head that the plain kernels keep in registers.
pub(crate) const HEAD_WIDTH_MAX: usize = 256;

/// Returns whether there are kernels by `wgmma` for this format and width.
pub(crate) fn wgmma_computes<E: CudaElement>(head_width: usize) -> bool {
    Flash::computes::<E>(head_width)
}

/// Attention by the chosen implementation.
#[derive(Debug)]
pub(crate) struct Attention {
    products: Products,
    /// The row sums of dout out.
    delta: Kernel,
    head_width: usize,
}

/// Kernels of forward and backward.
#[derive(Debug)]
enum Products {
    Flash(Flash),
    Plain(Plain),
}

/// Results of forward: output (B, T, H D) and log sums (B, H, T).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Forward<'a, E: CudaElement> {
    pub(crate) output: View<'a, E>,
    pub(crate) log_sums: View<'a, f32>,
}

/// Inputs of the backward kernels.
#[derive(Debug, Clone, Copy)]
struct BackwardInputs<'a, E: CudaElement> {
    /// (B, T, H D).
    doutput: View<'a, E>,
    /// (B, T, (H + 2 K) D).
    qkv: View<'a, E>,
    /// (B, H, T).
    log_sums: View<'a, f32>,
    /// (B, H, T).
    delta: View<'a, f32>,
}

impl Attention {
    /// Loads kernels for heads of an even width up to [`HEAD_WIDTH_MAX`].
    pub(crate) fn new<E: CudaElement>(device: &Cuda, head_width: usize) -> Result<Self, Error> {
        if !Flash::computes::<E>(head_width) {
            return Self::plain::<E>(device, head_width);
        }
        Self::flash::<E>(device, head_width, Flash::new::<E>(device, head_width)?)
    }

    /// Flash attention by `wgmma`, on devices of compute capability 9.0 for what
    /// [`wgmma_computes`].
    pub(crate) fn wgmma<E: CudaElement>(device: &Cuda, head_width: usize) -> Result<Self, Error> {
        assert!(wgmma_computes::<E>(head_width), "{:?}, D = {head_width}", E::FORMAT);
        Self::flash::<E>(device, head_width, Flash::wgmma::<E>(device, head_width)?)
    }

    fn flash<E: CudaElement>(
        device: &Cuda,
        head_width: usize,
        flash: Flash,
    ) -> Result<Self, Error> {
        let delta = plain::load::<E>(device, head_width)?.kernel(plain::DELTA)?;
        Ok(Self { products: Products::Flash(flash), delta, head_width })
    }

    /// The plain kernels, whatever the width and the format.
    pub(crate) fn plain<E: CudaElement>(device: &Cuda, head_width: usize) -> Result<Self, Error> {
        assert!(head_width.is_multiple_of(2) && head_width <= HEAD_WIDTH_MAX, "D = {head_width}");
        let module = plain::load::<E>(device, head_width)?;
        let delta = module.kernel(plain::DELTA)?;
        Ok(Self { products: Products::Plain(Plain::new(&module)?), delta, head_width })
    }

    /// Writes `output` (B, T, H D) and `log_sums` (B, H, T).
    pub(crate) fn forward<E: CudaElement>(
        &self,
        output: ViewMut<'_, E>,
        log_sums: ViewMut<'_, f32>,
        qkv: View<'_, E>,
        shape: Shape,
    ) -> Result<(), Error> {
        self.check(shape);
        shape.check(qkv.len(), output.len(), log_sums.len());
        match &self.products {
            Products::Flash(flash) => flash.forward(output, log_sums, qkv, shape),
            Products::Plain(plain) => plain.forward(output, log_sums, qkv, shape),
        }
    }

    /// Writes `dqkv`, with `delta` (B, H, T) as the workspace.
    pub(crate) fn backward<E: CudaElement>(
        &self,
        dqkv: ViewMut<'_, E>,
        delta: ViewMut<'_, f32>,
        doutput: View<'_, E>,
        qkv: View<'_, E>,
        forward: Forward<'_, E>,
        shape: Shape,
    ) -> Result<(), Error> {
        let Forward { output, log_sums } = forward;
        self.check(shape);
        shape.check(qkv.len(), output.len(), log_sums.len());
        shape.check(dqkv.len(), doutput.len(), log_sums.len());
        let delta = row_sums(&self.delta, delta, doutput, output, shape)?;
        let inputs = BackwardInputs { doutput, qkv, log_sums, delta };
        match &self.products {
            Products::Flash(flash) => flash.backward(dqkv, inputs, shape),
            Products::Plain(plain) => plain.backward(dqkv, inputs, shape),
        }
    }

    fn check(&self, shape: Shape) {
        assert_eq!(shape.head_width, self.head_width, "the width that was compiled for");
    }
}

/// Writes `delta` (B, H, T): the row sums of dout out. The caller checked the other lengths.
fn row_sums<'a, E: CudaElement>(
    kernel: &Kernel,
    mut delta: ViewMut<'a, f32>,
    doutput: View<'_, E>,
    output: View<'_, E>,
    shape: Shape,
) -> Result<View<'a, f32>, Error> {
    assert_eq!(delta.len(), shape.rows() * shape.heads, "delta (B, H, T) of {shape:?}");
    let launch = kernel.launch(plain::delta_grid::<E>(&shape));
    let launch = launch.writes(&mut delta).reads(doutput).reads(output);
    let launch = launch.int(shape.tokens).int(shape.heads).int(shape.head_width);
    // SAFETY: attention_delta(delta, doutput, output, tokens, heads, head width); the lengths were
    // checked.
    unsafe { launch.run() }?;
    Ok(delta.into_view())
}

/// 1 / sqrt(D).
fn scale(shape: &Shape) -> f64 {
    1.0 / (shape.head_width as f64).sqrt()
}
