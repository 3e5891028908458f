//! The compiled kernels and planned products of a network.

use device::cuda::{Cuda, Error};

use super::batch::TokenSender;
use super::buffers::Workspaces;
use super::layers::Layers;
use crate::fused::linear::Linear;
use crate::fused::norm::Norm;
use crate::fused::options::AttentionBackend;
use crate::fused::size::{Activation, Size};
use crate::layout::head_rows;
use crate::ops::attention::cuda::Attention;
use crate::ops::cross_entropy::cuda::CrossEntropy;
use crate::ops::embedding::cuda::Embedding;
use crate::ops::kernels::CudaElement;
use crate::ops::matmul::Shape;
use crate::ops::matmul::cuda::{Blas, Epilogue, Epilogues, LinearProducts};
use crate::ops::norm::NormKernels;
use crate::ops::rope::cuda::Rope;
use crate::ops::row_sums::cuda::ColumnSums;
use crate::ops::swiglu::cuda::SwiGlu;

/// Everything that computes.
#[derive(Debug)]
pub(super) struct Kernels {
    pub(super) device: Cuda,
    pub(super) tokens: TokenSender,
    pub(super) embedding: Embedding,
    pub(super) norm: NormKernels,
    pub(super) attention: Attention,
    /// Activation of Llama; GELU is an epilogue.
    pub(super) swiglu: Option<SwiGlu>,
    pub(super) rope: Option<Rope>,
    pub(super) cross_entropy: CrossEntropy,
    pub(super) layers: Layers,
    pub(super) head: Head,
}

/// The head's products, for whole chunks of tokens and for the rest.
#[derive(Debug)]
pub(super) struct Head {
    whole: LinearProducts,
    rest: Option<LinearProducts>,
    chunk: usize,
}

impl Kernels {
    pub(super) fn new<E: CudaElement>(
        device: &Cuda,
        size: &Size,
        workspaces: Workspaces,
    ) -> Result<Self, Error> {
        let blas = Blas::new(device, workspaces.products)?;
        let norm = match size.norm {
            Norm::Layer => NormKernels::layer_norm::<E>(device)?,
            Norm::RootMeanSquare { epsilon } => NormKernels::rms_norm::<E>(device, epsilon)?,
        };
        let is_llama = size.activation == Activation::SwiGlu;
        let attention = match size.attention_backend {
            AttentionBackend::Flash => Attention::new::<E>(device, size.attention.head_width)?,
            AttentionBackend::Cudnn => {
                Attention::cudnn(device, size.attention, workspaces.attention)?
            }
        };
        Ok(Self {
            device: device.clone(),
            tokens: TokenSender::new(device, size.rows, size.vocabulary)?,
            embedding: Embedding::new::<E>(device)?,
            norm,
            attention,
            swiglu: is_llama.then(|| SwiGlu::new::<E>(device)).transpose()?,
            rope: is_llama.then(|| Rope::new::<E>(device)).transpose()?,
            cross_entropy: CrossEntropy::new::<E>(device)?,
            head: Head::new::<E>(&blas, size)?,
            layers: Layers::new::<E>(blas, ColumnSums::new::<E>(device)?, size)?,
        })
    }
}

impl Head {
    fn new<E: CudaElement>(blas: &Blas, size: &Size) -> Result<Self, Error> {
        let chunk = size.chunk_tokens::<E>();
        let outputs = head_rows(size.vocabulary);
        let epilogues = Epilogues { forward: Epilogue::None, input: Epilogue::None };
        let products = |tokens| {
            let shape = Shape { rows: tokens, inputs: size.width, outputs };
            LinearProducts::new::<E>(blas, shape, epilogues)
        };
        let rest = size.rows % chunk;
        let rest = (rest > 0).then(|| products(rest)).transpose()?;
        Ok(Self { whole: products(chunk)?, rest, chunk })
    }

    /// The products of a chunk of so many tokens.
    pub(super) fn of(&mut self, tokens: usize) -> &mut LinearProducts {
        if tokens == self.chunk {
            return &mut self.whole;
        }
        self.rest.as_mut().unwrap_or_else(|| unreachable!("a chunk of {tokens} tokens"))
    }
}

/// The epilogues of a linear layer.
pub(super) fn epilogues(size: &Size, linear: Linear) -> Epilogues {
    let has_gelu = size.activation == Activation::Gelu;
    let forward = match linear {
        Linear::Expand if has_gelu => Epilogue::GeluBias,
        _ if has_gelu => Epilogue::Bias,
        _ => Epilogue::None,
    };
    let input = match linear {
        Linear::Contract if has_gelu => Epilogue::GeluGradient,
        _ => Epilogue::None,
    };
    Epilogues { forward, input }
}
