//! Every dimension that the engine's buffers depend on, and which ops a family uses.

use device::Allocator;

use super::linear::Linear;
use super::ops::Chunk;
use super::options::{AttentionBackend, Options, Recompute};
use crate::config::Family;
use crate::meter::Work;
use crate::ops::matmul::{self, Shape};
use crate::ops::{Element, Float, attention, cross_entropy, rope, work};
use crate::{MicroBatch, ModelConfig};

/// What is between the linear layers of a feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activation {
    /// gelu(x), from (N, F).
    Gelu,
    /// silu(gate) up, from (N, 2 F).
    SwiGlu,
}

/// A family's norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Norm {
    /// LayerNorm with bias. Saves mean and 1 / standard deviation.
    Layer,
    /// RMSNorm without bias. Saves 1 / root mean square.
    RootMeanSquare {
        /// Added to the mean square.
        epsilon: f64,
    },
}

/// Dimensions and kinds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// N = B T.
    pub(super) rows: usize,
    /// B, T, H, K and D.
    pub(super) attention: attention::Shape,
    pub(super) attention_backend: AttentionBackend,
    /// C.
    pub(super) width: usize,
    /// F.
    pub(super) feed_forward: usize,
    /// V.
    pub(super) vocabulary: usize,
    /// L.
    pub(super) layers: usize,
    pub(super) norm: Norm,
    pub(super) activation: Activation,
    /// What backward computes again.
    pub(super) recompute: Recompute,
    /// Whether outputs of norms and activations are saved, of as many blocks as anything is.
    pub(super) saves_outputs: bool,
    /// Threads that work is divided for.
    pub(super) threads: usize,
    /// Most bytes of logits that exist at one time.
    logits_bytes: usize,
}

impl Size {
    pub(crate) fn new(config: &ModelConfig, micro_batch: MicroBatch, options: Options) -> Self {
        let Options { recompute, threads, on_cuda, logits_bytes, .. } = options;
        let attention = attention::Shape {
            sequences: micro_batch.sequences,
            tokens: micro_batch.tokens,
            heads: config.heads,
            key_value_heads: config.key_value_heads(),
            head_width: config.head_width(),
        };
        let (norm, activation) = match config.family {
            Family::Gpt => (Norm::Layer, Activation::Gelu),
            Family::Llama(llama) => {
                (Norm::RootMeanSquare { epsilon: llama.norm_epsilon }, Activation::SwiGlu)
            }
        };
        Self {
            rows: micro_batch.rows(),
            attention,
            attention_backend: options.attention,
            width: config.width,
            feed_forward: config.feed_forward,
            vocabulary: config.vocabulary,
            layers: config.layers,
            norm,
            activation,
            recompute,
            // On the processor that would only move what is cheap to compute.
            saves_outputs: on_cuda && recompute != Recompute::Selective,
            threads,
            logits_bytes,
        }
    }

    /// Blocks whose activations exist at one time; inputs of all blocks do.
    pub(super) fn saved_blocks(&self) -> usize {
        if self.recompute == Recompute::Full { 1 } else { self.layers }
    }

    /// Elements of the residual stream: N C.
    pub(super) fn stream(&self) -> usize {
        self.rows * self.width
    }

    /// Elements of the feed-forward layer after its activation: N F.
    pub(super) fn hidden(&self) -> usize {
        self.rows * self.feed_forward
    }

    /// Whether queries and keys are rotated by their positions: in Llama, which has SwiGLU as well.
    pub(super) fn has_rope(&self) -> bool {
        self.activation == Activation::SwiGlu
    }

    /// Columns of queries, keys and values: (H + 2 K) D.
    pub(super) fn qkv(&self) -> usize {
        self.attention.qkv_width()
    }

    /// Columns of the feed-forward layer before its activation: F or 2 F.
    pub(super) fn expanded(&self) -> usize {
        match self.activation {
            Activation::Gelu => self.feed_forward,
            Activation::SwiGlu => 2 * self.feed_forward,
        }
    }

    /// Columns of the widest gradient within a block.
    pub(super) fn wide(&self) -> usize {
        self.feed_forward.max(self.qkv())
    }

    /// A linear layer over all rows.
    pub(super) fn linear(&self, linear: Linear) -> Shape {
        let (inputs, outputs) = match linear {
            Linear::AttentionIn => (self.width, self.qkv()),
            Linear::AttentionOut => (self.width, self.width),
            Linear::Expand => (self.width, self.expanded()),
            Linear::Contract => (self.feed_forward, self.width),
        };
        Shape { rows: self.rows, inputs, outputs }
    }

    /// The heads that RoPE rotates: those of queries and keys.
    pub(super) fn rope(&self) -> rope::Shape {
        let heads = self.attention.heads + self.attention.key_value_heads;
        rope::Shape { columns: self.qkv(), heads }
    }

    /// Statistics that one norm saves.
    pub(super) fn stats(&self) -> usize {
        self.rows * self.norm_vectors()
    }

    /// Values that a norm's backward sums over rows: one for each of its parameters.
    pub(super) fn norm_sums(&self) -> usize {
        self.width * self.norm_vectors()
    }

    /// Number of statistics that a norm saves of each row, and of its parameter vectors: weight,
    /// and in LayerNorm bias.
    fn norm_vectors(&self) -> usize {
        match self.norm {
            Norm::Layer => 2,
            Norm::RootMeanSquare { .. } => 1,
        }
    }

    /// One pass of a norm over all rows.
    pub(super) fn norm_work<E: Element>(&self, is_backward: bool) -> Work {
        work::norm::<E>(self.rows * self.width, self.stats(), is_backward)
    }

    /// RoPE on all queries and keys.
    pub(super) fn rope_work<E: Element>(&self) -> Work {
        work::rope::<E>(self.rows, self.rope(), self.attention.head_width)
    }

    /// T and C, of the embeddings.
    pub(super) fn sequence_and_width(&self) -> (usize, usize) {
        (self.attention.tokens, self.width)
    }

    /// RoPE's angles, in Llama.
    pub(super) fn rope_tables<W: Float>(
        &self,
        allocator: &Allocator,
        config: &ModelConfig,
    ) -> Option<rope::Tables<W>> {
        let Family::Llama(llama) = config.family else { return None };
        let angles = llama.angles_per_token(self.attention.head_width);
        let allocator = allocator.for_purpose("positions");
        Some(rope::Tables::new(&allocator, &angles, self.attention.tokens))
    }

    /// Tokens whose logits exist at one time.
    pub(super) fn chunk_tokens<E: Element>(&self) -> usize {
        cross_entropy::chunk_tokens::<E>(self.rows, self.vocabulary, self.logits_bytes)
    }

    /// The chunks of all tokens.
    pub(super) fn chunks<E: Element>(&self) -> impl Iterator<Item = Chunk> + use<E> {
        let rows = self.rows;
        let most = self.chunk_tokens::<E>();
        let chunk = move |start| Chunk { start, tokens: most.min(rows - start) };
        (0..rows).step_by(most).map(chunk)
    }

    /// The head over one chunk.
    pub(super) fn head(&self, chunk: Chunk) -> cross_entropy::Shape {
        let Self { width, vocabulary, .. } = *self;
        cross_entropy::Shape { tokens: chunk.tokens, width, vocabulary }
    }

    /// All products of a micro-batch.
    pub(super) fn products<E: Element>(&self) -> Vec<matmul::Extent> {
        let linear = Linear::ALL.map(|linear| self.linear(linear).products());
        let head = |chunk| cross_entropy::Workspace::<E>::products(self.head(chunk));
        linear.into_iter().chain(self.chunks::<E>().map(head)).flatten().collect()
    }
}
