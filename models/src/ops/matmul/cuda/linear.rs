//! The products of a linear layer over rows: Y (N, O) = X (N, I) W (O, I)^T.
#![allow(unsafe_code)] // products of matrices whose lengths are checked here

use std::fmt;

use device::cuda::Error;
use device::{View, ViewMut};

use super::bias::AddBias;
use super::product::{Blas, Epilogue, Operands, Product, ProductShape};
use crate::ops::gelu::cuda::Gelu;
use crate::ops::kernels::{CudaElement, Format};
use crate::ops::matmul::{Shape, Sums};
use cudarc::cublaslt::sys::cudaDataType;

/// Forward, the input's gradient and the weight's of one linear layer.
#[derive(Debug)]
pub(crate) struct LinearProducts {
    shape: Shape,
    epilogues: Epilogues,
    forward: Product,
    input: Product,
    weight: Product,
    /// GELU's kernel: in f32, where the library's GELU is not known to be as precise, and where the
    /// library refuses it.
    gelu: Option<Gelu>,
    /// The bias's kernel, where the library refuses it.
    bias: Option<AddBias>,
    fallback: Option<Fallback>,
}

/// Parts of epilogues that kernels compute because the library has no algorithm with them.
#[derive(Debug)]
pub(crate) struct Fallback {
    pub(crate) bias: bool,
    gelu: bool,
    /// The library's first refusal.
    refusal: Error,
}

/// Epilogues of a linear layer's products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epilogues {
    /// Epilogue of forward.
    pub(crate) forward: Epilogue,
    /// Epilogue of the input's gradient.
    pub(crate) input: Epilogue,
}

/// Operands of forward's epilogue.
#[derive(Debug, Default)]
pub(crate) struct Extras<'a, E: CudaElement> {
    pub(crate) bias: Option<View<'a, E>>,
    /// Added to Y.
    pub(crate) residual: Option<View<'a, E>>,
    /// Written: what is before GELU.
    pub(crate) before_gelu: Option<ViewMut<'a, E>>,
}

impl LinearProducts {
    pub(crate) fn new<E: CudaElement>(
        blas: &Blas,
        shape: Shape,
        epilogues: Epilogues,
    ) -> Result<Self, Error> {
        let Shape { rows: count, inputs, outputs } = shape;
        let base = ProductShape {
            m: outputs,
            n: count,
            k: inputs,
            a_is_transposed: true,
            b_is_transposed: false,
            a_stride: inputs,
            b_stride: inputs,
            d_stride: outputs,
            factors: E::MATRIX,
            product: E::MATRIX,
        };
        let input = ProductShape {
            m: inputs,
            k: outputs,
            a_is_transposed: false,
            b_stride: outputs,
            d_stride: inputs,
            ..base
        };
        let weight = ProductShape {
            m: inputs,
            n: outputs,
            k: count,
            a_is_transposed: false,
            b_is_transposed: true,
            b_stride: outputs,
            d_stride: inputs,
            product: cudaDataType::CUDA_R_32F,
            ..base
        };
        let has_gelu = epilogues.forward.has_gelu() || epilogues.input.has_gelu();
        let has_own_gelu = has_gelu && E::FORMAT == Format::F32;
        let of_library = |epilogue: Epilogue| {
            if has_own_gelu { epilogue.without_gelu() } else { epilogue }
        };
        let mut fallback = None;
        let forward = planned(blas, base, of_library(epilogues.forward), &mut fallback)?;
        let input = planned(blas, input, of_library(epilogues.input), &mut fallback)?;
        let weight = Product::new(blas, weight, Epilogue::None)?;
        let has_own_gelu = has_own_gelu || fallback.as_ref().is_some_and(|parts| parts.gelu);
        let has_own_bias = fallback.as_ref().is_some_and(|parts| parts.bias);
        let gelu = has_own_gelu.then(|| Gelu::new::<E>(blas.device())).transpose()?;
        let bias = has_own_bias.then(|| AddBias::new::<E>(blas.device())).transpose()?;
        Ok(Self { shape, epilogues, forward, input, weight, gelu, bias, fallback })
    }

    /// All of its products.
    pub(crate) fn products(&mut self) -> [&mut Product; 3] {
        [&mut self.forward, &mut self.input, &mut self.weight]
    }

    /// Parts of epilogues that the library refused, if there are any.
    pub(crate) fn fallback(&self) -> Option<&Fallback> {
        self.fallback.as_ref()
    }

    /// Writes Y.
    pub(crate) fn forward<E: CudaElement>(
        &mut self,
        blas: &mut Blas,
        mut y: ViewMut<'_, E>,
        x: View<'_, E>,
        weight: View<'_, E>,
        extras: Extras<'_, E>,
    ) -> Result<(), Error> {
        self.check(x.len(), weight.len(), y.len());
        let Extras { bias, residual, before_gelu } = extras;
        let outputs = self.epilogues.forward.has_bias().then_some(self.shape.outputs);
        assert_eq!(bias.map(View::len), outputs, "bias (O)");
        let outputs = residual.map(View::len).into_iter();
        let outputs = outputs.chain(before_gelu.as_ref().map(ViewMut::len));
        assert!(outputs.into_iter().all(|len| len == y.len()), "(N, O)");
        let has_gelu = self.epilogues.forward.has_gelu();
        assert_eq!(before_gelu.is_some(), has_gelu, "before GELU");
        let operands = Operands {
            a: weight.cuda_address(),
            b: x.cuda_address(),
            added: residual.map_or(0, View::cuda_address),
            d: y.cuda_address(),
            bias: bias.map_or(0, View::cuda_address),
            before_gelu: 0,
        };
        match (before_gelu, self.own_gelu(&self.forward)) {
            (Some(mut before), Some(_)) => {
                let operands = Operands { d: before.cuda_address(), ..operands };
                // SAFETY: the lengths were checked; what is written is borrowed exclusively.
                unsafe { self.forward.run(blas, operands) }?;
                self.add_bias(&mut before, bias)?;
                self.own_gelu(&self.forward)
                    .map_or(Ok(()), |gelu| gelu.forward(y, before.into_view()))
            }
            (before, _) => {
                let before_gelu = before.map_or(0, |view| view.cuda_address());
                // SAFETY: as above.
                unsafe { self.forward.run(blas, Operands { before_gelu, ..operands }) }?;
                self.add_bias(&mut y, bias)
            }
        }
    }

    /// GELU's kernel for a product whose epilogue has no GELU.
    fn own_gelu(&self, product: &Product) -> Option<&Gelu> {
        self.gelu.as_ref().filter(|_| !product.epilogue().has_gelu())
    }

    /// Adds the bias where the product's epilogue has none.
    fn add_bias<E: CudaElement>(
        &self,
        y: &mut ViewMut<'_, E>,
        bias: Option<View<'_, E>>,
    ) -> Result<(), Error> {
        match (&self.bias, bias) {
            (Some(kernel), Some(bias)) => kernel.add(y, bias),
            _ => Ok(()),
        }
    }

    /// Writes dX (N, I) = dY W.
    pub(crate) fn input<E: CudaElement>(
        &mut self,
        blas: &mut Blas,
        dx: ViewMut<'_, E>,
        dy: View<'_, E>,
        weight: View<'_, E>,
        before_gelu: Option<View<'_, E>>,
    ) -> Result<(), Error> {
        self.check(dx.len(), weight.len(), dy.len());
        let has_gelu = self.epilogues.input == Epilogue::GeluGradient;
        assert_eq!(before_gelu.map(View::len), has_gelu.then_some(dx.len()), "before GELU (N, I)");
        let operands = Operands {
            a: weight.cuda_address(),
            b: dy.cuda_address(),
            d: dx.cuda_address(),
            before_gelu: before_gelu.map_or(0, View::cuda_address),
            ..Operands::default()
        };
        // SAFETY: the lengths were checked; `dx` is borrowed exclusively.
        unsafe { self.input.run(blas, operands) }?;
        match (before_gelu, self.own_gelu(&self.input)) {
            (Some(before), Some(gelu)) => gelu.backward(dx, before),
            _ => Ok(()),
        }
    }

    /// Writes dW (O, I) = dY^T X, or adds it.
    pub(crate) fn weight<E: CudaElement>(
        &mut self,
        blas: &mut Blas,
        dweight: ViewMut<'_, f32>,
        dy: View<'_, E>,
        x: View<'_, E>,
        sums: Sums,
    ) -> Result<(), Error> {
        self.check(x.len(), dweight.len(), dy.len());
        let d = dweight.cuda_address();
        let operands = Operands {
            a: x.cuda_address(),
            b: dy.cuda_address(),
            added: if sums == Sums::Add { d } else { 0 },
            d,
            ..Operands::default()
        };
        // SAFETY: the lengths were checked; `dweight` is borrowed exclusively.
        unsafe { self.weight.run(blas, operands) }
    }

    fn check(&self, x: usize, weight: usize, y: usize) {
        let Shape { rows, inputs, outputs } = self.shape;
        assert_eq!(x, rows * inputs, "X (N, I) of {:?}", self.shape);
        assert_eq!(weight, outputs * inputs, "W (O, I) of {:?}", self.shape);
        assert_eq!(y, rows * outputs, "Y (N, O) of {:?}", self.shape);
    }
}

/// The product with as much of its epilogue as the library has an algorithm for.
fn planned(
    blas: &Blas,
    shape: ProductShape,
    epilogue: Epilogue,
    fallback: &mut Option<Fallback>,
) -> Result<Product, Error> {
    let refusal = match Product::new(blas, shape, epilogue) {
        Err(refusal @ (Error::NoPlan { .. } | Error::Library { .. })) => refusal,
        planned => return planned,
    };
    let Some(simpler) = epilogue.simpler() else { return Err(refusal) };
    let parts = fallback.get_or_insert(Fallback { bias: false, gelu: false, refusal });
    parts.gelu |= epilogue.has_gelu() && !simpler.has_gelu();
    parts.bias |= epilogue.has_bias() && !simpler.has_bias();
    planned(blas, shape, simpler, fallback)
}

impl fmt::Display for Fallback {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = match (self.bias, self.gelu) {
            (true, true) => "passes of their own compute bias and GELU",
            (true, false) => "a pass of its own computes the bias",
            _ => "a pass of its own computes GELU",
        };
        write!(formatter, "{parts}, which costs time: {}", self.refusal)
    }
}
