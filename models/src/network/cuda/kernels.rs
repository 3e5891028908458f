//! The compiled kernels and planned products of a network.

use std::collections::BTreeSet;

use device::DeviceBuffer;
use device::cuda::{Cuda, Error};

use super::tokens::TokenSender;
use crate::layout::head_rows;
use crate::network::linear::Linear;
use crate::network::options::AttentionBackend;
use crate::network::size::{Activation, Norm, Size};
use crate::ops::attention::cuda::Attention;
use crate::ops::cross_entropy::cuda::CrossEntropy;
use crate::ops::embedding::cuda::Embedding;
use crate::ops::gelu::cuda::Gelu;
use crate::ops::kernels::CudaElement;
use crate::ops::matmul::Shape;
use crate::ops::matmul::cuda::{Blas, Epilogue, Epilogues, LinearProducts, Product};
use crate::ops::norm::{NormKernels, NormShape};
use crate::ops::rope::cuda::Rope;
use crate::ops::row_sums::cuda::ColumnSums;
use crate::ops::swiglu::cuda::SwiGlu;
use crate::tuning::{ProductTuner, TunedProduct};

/// Everything that computes.
#[derive(Debug)]
pub(super) struct Kernels {
    pub(super) device: Cuda,
    pub(super) tokens: TokenSender,
    pub(super) embedding: Embedding,
    pub(super) norm: NormKernels,
    /// The input of every norm.
    pub(super) norm_shape: NormShape,
    pub(super) attention: Attention,
    /// GELU, where backward computes it again; forward's is an epilogue.
    pub(super) gelu: Option<Gelu>,
    /// Kernels of Llama.
    pub(super) llama: Option<LlamaKernels>,
    pub(super) cross_entropy: CrossEntropy,
    pub(super) column_sums: ColumnSums,
    pub(super) blas: Blas,
    /// In the order of [`Linear::ALL`].
    pub(super) products: Vec<LinearProducts>,
    pub(super) head: Head,
}

/// Kernels that only Llama uses.
#[derive(Debug)]
pub(super) struct LlamaKernels {
    pub(super) swiglu: SwiGlu,
    pub(super) rope: Rope,
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
        workspace: DeviceBuffer<u8>,
    ) -> Result<Self, Error> {
        let blas = Blas::new(device, workspace)?;
        let head_width = size.attention.head_width;
        let attention = match size.attention_backend {
            AttentionBackend::Flash => Attention::new::<E>(device, head_width)?,
            AttentionBackend::Wgmma => Attention::wgmma::<E>(device, head_width)?,
        };
        let norm = match size.norm {
            Norm::Layer => NormKernels::layer_norm::<E>(device)?,
            Norm::RootMeanSquare { epsilon } => NormKernels::rms_norm::<E>(device, epsilon)?,
        };
        let is_llama = size.activation == Activation::SwiGlu;
        let recomputes_gelu = !is_llama && !size.saves_outputs;
        let products = Linear::ALL.map(|linear| {
            LinearProducts::new::<E>(&blas, size.linear(linear), epilogues(size, linear))
        });
        Ok(Self {
            device: device.clone(),
            tokens: TokenSender::new(device, size.rows, size.vocabulary)?,
            embedding: Embedding::new::<E>(device)?,
            norm,
            norm_shape: NormShape { rows: size.rows, width: size.width },
            attention,
            gelu: recomputes_gelu.then(|| Gelu::new::<E>(device)).transpose()?,
            llama: is_llama.then(|| LlamaKernels::new::<E>(device)).transpose()?,
            cross_entropy: CrossEntropy::new::<E>(device)?,
            column_sums: ColumnSums::new::<E>(device)?,
            products: products.into_iter().collect::<Result<_, _>>()?,
            head: Head::new::<E>(&blas, size)?,
            blas,
        })
    }

    pub(super) fn llama(&self) -> &LlamaKernels {
        self.llama.as_ref().unwrap_or_else(|| unreachable!("only Llama has RoPE and SwiGLU"))
    }
}

/// The library, and all products that it computes.
struct Products<'a> {
    blas: &'a Blas,
    all: Vec<&'a mut Product>,
}

impl Kernels {
    fn all_products(&mut self) -> Products<'_> {
        let Self { blas, products, head, .. } = self;
        let head = std::iter::once(&mut head.whole).chain(&mut head.rest);
        let all = products.iter_mut().chain(head).flat_map(LinearProducts::products);
        Products { blas, all: all.collect() }
    }
}

impl ProductTuner for Kernels {
    fn products(&mut self) -> Vec<String> {
        let all = self.all_products().all;
        let described: BTreeSet<String> = all.into_iter().map(|product| product.key()).collect();
        described.into_iter().collect()
    }

    fn begin(&mut self) {
        let Products { blas, all } = self.all_products();
        all.into_iter().for_each(|product| product.begin_tuning(blas));
    }

    fn measured(&mut self) -> Vec<TunedProduct> {
        let mut found: Vec<TunedProduct> = Vec::new();
        for tuned in self.all_products().all.into_iter().filter_map(Product::take_measured) {
            if found.iter().all(|other| other.product != tuned.product) {
                found.push(tuned);
            }
        }
        found
    }

    fn accepts(&mut self, tuned: &[TunedProduct]) -> bool {
        let Products { blas, all } = self.all_products();
        let is_accepted =
            |product: &&mut Product| tuned.iter().any(|tuned| product.accepts_tuned(blas, tuned));
        all.iter().all(is_accepted)
    }

    fn adopt(&mut self, tuned: &[TunedProduct]) {
        for product in self.all_products().all {
            let key = product.key();
            if let Some(tuned) = tuned.iter().find(|tuned| tuned.product == key) {
                product.adopt(tuned);
            }
        }
    }
}

impl LlamaKernels {
    fn new<E: CudaElement>(device: &Cuda) -> Result<Self, Error> {
        Ok(Self { swiglu: SwiGlu::new::<E>(device)?, rope: Rope::new::<E>(device)? })
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
fn epilogues(size: &Size, linear: Linear) -> Epilogues {
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
