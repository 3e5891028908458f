//! The products of a linear layer over rows: Y (N, O) = X (N, I) W (O, I)^T.
#![allow(unsafe_code)] // products of matrices whose lengths are checked here

use device::cuda::Error;
use device::{View, ViewMut};

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
    /// The library's refusal of GELU in an epilogue.
    refusal: Option<Error>,
}

/// The products that have epilogues.
struct WithEpilogues {
    forward: Product,
    input: Product,
}

/// Epilogues of a linear layer's products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epilogues {
    /// Epilogue of forward.
    pub(crate) forward: Epilogue,
    /// Epilogue of the input's gradient.
    pub(crate) input: Epilogue,
}

impl Epilogues {
    fn has_gelu(&self) -> bool {
        self.forward == Epilogue::GeluBias || self.input == Epilogue::GeluGradient
    }

    /// The rest where a kernel computes GELU and its slope.
    fn without_gelu(self) -> Self {
        Self { forward: self.forward.without_gelu(), input: self.input.without_gelu() }
    }
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
        let plan = |epilogues: Epilogues| {
            let forward = Product::new(blas, base, epilogues.forward)?;
            let input = Product::new(blas, input, epilogues.input)?;
            Ok(WithEpilogues { forward, input })
        };
        let has_gelu = epilogues.has_gelu();
        let mut has_own_gelu = has_gelu && E::FORMAT == Format::F32;
        let mut refusal = None;
        let planned = match plan(if has_own_gelu { epilogues.without_gelu() } else { epilogues }) {
            Err(error @ (Error::Library { .. } | Error::NoPlan { .. }))
                if has_gelu && !has_own_gelu =>
            {
                has_own_gelu = true;
                refusal = Some(error);
                plan(epilogues.without_gelu())
            }
            planned => planned,
        };
        let WithEpilogues { forward, input } = planned?;
        let gelu = has_own_gelu.then(|| Gelu::new::<E>(blas.device())).transpose()?;
        let weight = Product::new(blas, weight, Epilogue::None)?;
        Ok(Self { shape, epilogues, forward, input, weight, gelu, refusal })
    }

    /// The library's refusal to compute GELU in an epilogue, if a kernel does it instead.
    pub(crate) fn refusal(&self) -> Option<&Error> {
        self.refusal.as_ref()
    }

    /// Writes Y.
    pub(crate) fn forward<E: CudaElement>(
        &mut self,
        blas: &mut Blas,
        y: ViewMut<'_, E>,
        x: View<'_, E>,
        weight: View<'_, E>,
        extras: Extras<'_, E>,
    ) -> Result<(), Error> {
        self.check(x.len(), weight.len(), y.len());
        let Extras { bias, residual, before_gelu } = extras;
        let has_bias = matches!(self.epilogues.forward, Epilogue::Bias | Epilogue::GeluBias);
        assert_eq!(bias.map(View::len), has_bias.then_some(self.shape.outputs), "bias (O)");
        let outputs = residual.map(View::len).into_iter();
        let outputs = outputs.chain(before_gelu.as_ref().map(ViewMut::len));
        assert!(outputs.into_iter().all(|len| len == y.len()), "(N, O)");
        assert_eq!(
            before_gelu.is_some(),
            self.epilogues.forward == Epilogue::GeluBias,
            "before GELU"
        );
        let operands = Operands {
            a: weight.cuda_address(),
            b: x.cuda_address(),
            added: residual.map_or(0, View::cuda_address),
            d: y.cuda_address(),
            bias: bias.map_or(0, View::cuda_address),
            before_gelu: 0,
        };
        match (before_gelu, &self.gelu) {
            (Some(before), Some(gelu)) => {
                let operands = Operands { d: before.cuda_address(), ..operands };
                // SAFETY: the lengths were checked; what is written is borrowed exclusively.
                unsafe { self.forward.run(blas, operands) }?;
                gelu.forward(y, before.into_view())
            }
            (before, _) => {
                let before_gelu = before.map_or(0, |view| view.cuda_address());
                // SAFETY: as above.
                unsafe { self.forward.run(blas, Operands { before_gelu, ..operands }) }
            }
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
        match (before_gelu, &self.gelu) {
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
