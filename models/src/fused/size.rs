//! Every dimension that the engine's buffers depend on, and which ops a family uses.

use super::linear::Linear;
use super::norm::Norm;
use super::options::{AttentionBackend, Options};
use crate::config::Family;
use crate::meter::Work;
use crate::ops::matmul::{self, Shape};
use crate::ops::{Element, attention, cross_entropy, rope, work};
use crate::{MicroBatch, ModelConfig};

/// What is between the linear layers of a feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activation {
    /// gelu(x), from (N, F).
    Gelu,
    /// silu(gate) up, from (N, 2 F).
    SwiGlu,
}

/// Dimensions and kinds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
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
    /// Whether blocks save only their inputs and recompute the rest in backward.
    pub(super) recompute: bool,
    /// Threads that work is divided for.
    pub(super) threads: usize,
    /// Most bytes of logits that exist at one time.
    logits_bytes: usize,
}

impl Size {
    pub(super) fn new(config: &ModelConfig, micro_batch: MicroBatch, options: Options) -> Self {
        let Options { recompute, threads, attention: attention_backend, logits_bytes, .. } =
            options;
        let attention = attention::Shape {
            sequences: micro_batch.sequences,
            tokens: micro_batch.tokens,
            heads: config.heads,
            key_value_heads: config.key_value_heads(),
            head_width: config.head_width(),
        };
        let activation = match config.family {
            Family::Gpt => Activation::Gelu,
            Family::Llama(_) => Activation::SwiGlu,
        };
        Self {
            rows: micro_batch.rows(),
            attention,
            attention_backend,
            width: config.width,
            feed_forward: config.feed_forward,
            vocabulary: config.vocabulary,
            layers: config.layers,
            norm: Norm::new(config),
            activation,
            recompute,
            threads,
            logits_bytes,
        }
    }

    /// Blocks whose activations exist at one time; inputs of all blocks do.
    pub(super) fn saved_blocks(&self) -> usize {
        if self.recompute { 1 } else { self.layers }
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
        self.rows * self.norm.stats_per_row()
    }

    /// Values that a norm's backward sums over rows: one for each of its parameters.
    pub(super) fn norm_sums(&self) -> usize {
        self.width * self.norm.parameters()
    }

    /// One pass of a norm over all rows.
    pub(super) fn norm_work<E: Element>(&self, is_backward: bool) -> Work {
        work::norm::<E>(self.rows * self.width, self.stats(), is_backward)
    }

    /// RoPE on all queries and keys.
    pub(super) fn rope_work<E: Element>(&self) -> Work {
        work::rope::<E>(self.rows, self.rope(), self.attention.head_width)
    }

    /// Tokens whose logits exist at one time.
    pub(super) fn chunk_tokens<E: Element>(&self) -> usize {
        cross_entropy::chunk_tokens::<E>(self.rows, self.vocabulary, self.logits_bytes)
    }

    /// All products of a micro-batch.
    pub(super) fn products<E: Element>(&self) -> Vec<matmul::Extent> {
        let linear = Linear::ALL.map(|linear| self.linear(linear).products());
        let chunk = self.chunk_tokens::<E>();
        let chunks = [chunk, self.rows % chunk].into_iter().filter(|&tokens| tokens > 0);
        let table = (self.vocabulary, self.width);
        let head = |tokens| cross_entropy::Workspace::<E>::products(tokens, table);
        linear.into_iter().chain(chunks.map(head)).flatten().collect()
    }
}
