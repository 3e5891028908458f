//! Every dimension that the engine's buffers depend on, and which ops a family takes.

use super::Options;
use super::norm::Norm;
use crate::ModelConfig;
use crate::config::Family;
use crate::meter::Role;
use crate::ops::matmul::{self, Shape};
use crate::ops::{Element, Work, attention, cross_entropy, rope, work};

/// What stands between the two matrices of a feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activation {
    /// gelu(x), from (N, F).
    Gelu,
    /// silu(gate) up, from (N, 2 F).
    SwiGlu,
}

/// The products of a block with a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Linear {
    /// Makes queries, keys and values.
    AttentionIn,
    /// Follows attention.
    AttentionOut,
    /// Into the feed-forward layer.
    Expand,
    /// Out of it.
    Contract,
}

impl Linear {
    pub(super) const ALL: [Self; 4] =
        [Self::AttentionIn, Self::AttentionOut, Self::Expand, Self::Contract];

    /// What it is called where ops are counted.
    pub(super) fn role(self) -> Role {
        match self {
            Self::AttentionIn => Role::AttentionIn,
            Self::AttentionOut => Role::AttentionOut,
            Self::Expand => Role::Expand,
            Self::Contract => Role::Contract,
        }
    }
}

/// Dimensions and kinds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// N = B T.
    pub(super) rows: usize,
    /// B, T, H, K and D.
    pub(super) attention: attention::Shape,
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
    /// Whether blocks keep only their inputs and run forward again in backward.
    pub(super) recompute: bool,
    /// Whether weights stay packed until they change.
    pub(super) pack_weights: bool,
    /// Threads that work is divided for.
    pub(super) threads: usize,
}

impl Size {
    pub(super) fn new(
        config: &ModelConfig,
        (sequences, tokens): (usize, usize),
        options: Options,
        threads: usize,
    ) -> Self {
        let Options { recompute, pack_weights, .. } = options;
        let attention = attention::Shape {
            sequences,
            tokens,
            heads: config.heads,
            key_value_heads: config.key_value_heads(),
            head_width: config.head_width(),
        };
        let activation = match config.family {
            Family::Gpt => Activation::Gelu,
            Family::Llama(_) => Activation::SwiGlu,
        };
        Self {
            rows: sequences * tokens,
            attention,
            width: config.width,
            feed_forward: config.feed_forward,
            vocabulary: config.vocabulary,
            layers: config.layers,
            norm: Norm::new(config),
            activation,
            recompute,
            pack_weights,
            threads,
        }
    }

    /// Blocks whose activations exist at one time, their inputs apart.
    pub(super) fn kept_blocks(&self) -> usize {
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

    /// Columns of the widest gradient that a block keeps nowhere else.
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

    /// The heads that positions turn: those of queries and keys.
    pub(super) fn rope(&self) -> rope::Shape {
        let heads = self.attention.heads + self.attention.key_value_heads;
        rope::Shape { columns: self.qkv(), heads }
    }

    /// Numbers that one norm keeps.
    pub(super) fn stats(&self) -> usize {
        self.rows * self.norm.numbers()
    }

    /// Numbers that a norm's backward sums over rows: one for each of its parameters.
    pub(super) fn norm_sums(&self) -> usize {
        self.width * self.norm.parameters()
    }

    /// One pass of a norm over all rows.
    pub(super) fn norm_work<E: Element>(&self, is_backward: bool) -> Work {
        work::norm::<E>(self.rows * self.width, self.stats(), is_backward)
    }

    /// One turn of all queries and keys.
    pub(super) fn rope_work<E: Element>(&self) -> Work {
        work::rope::<E>(self.rows, self.rope(), self.attention.head_width)
    }

    /// Tokens whose logits exist at one time.
    pub(super) fn chunk_tokens<E: Element>(&self) -> usize {
        cross_entropy::chunk_tokens::<E>(self.rows, self.vocabulary)
    }

    /// All products of a micro-batch.
    pub(super) fn products<E: Element>(&self) -> Vec<matmul::Extent> {
        let linear = Linear::ALL.map(|linear| self.linear(linear).products(self.pack_weights));
        let chunk = self.chunk_tokens::<E>();
        let chunks = [chunk, self.rows % chunk].into_iter().filter(|&tokens| tokens > 0);
        let table = (self.vocabulary, self.width);
        let head =
            |tokens| cross_entropy::Workspace::<E>::products(tokens, table, self.pack_weights);
        linear.into_iter().chain(chunks.map(head)).flatten().collect()
    }
}
