//! Where the engine finds each tensor: the layout's names resolved once.

use std::ops::Range;

use crate::{Layout, ModelConfig};

/// A weight and its bias.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    weight: Range<usize>,
    bias: Range<usize>,
    /// Start of the segment that both lie in.
    segment_start: usize,
}

impl Pair {
    /// Weight and bias out of the flat weights.
    pub(super) fn of<'a, T>(&self, weights: &'a [T]) -> (&'a [T], &'a [T]) {
        (&weights[self.weight.clone()], &weights[self.bias.clone()])
    }

    /// The gradients of weight and bias out of the gradient of their segment.
    pub(super) fn of_segment<'a, T>(&self, segment: &'a mut [T]) -> (&'a mut [T], &'a mut [T]) {
        split(segment, [self.weight.clone(), self.bias.clone()], self.segment_start)
    }
}

/// The tensors of one block.
#[derive(Debug, Clone)]
pub(super) struct BlockPlaces {
    /// Index of the block's segment.
    pub(super) segment: usize,
    pub(super) norm1: Pair,
    pub(super) attention_in: Pair,
    pub(super) attention_out: Pair,
    pub(super) norm2: Pair,
    pub(super) expand: Pair,
    pub(super) contract: Pair,
}

/// The two tables.
#[derive(Debug, Clone)]
pub(super) struct EmbeddingPlaces {
    /// Index of the tables' segment.
    pub(super) segment: usize,
    pub(super) tokens: Range<usize>,
    pub(super) positions: Range<usize>,
    segment_start: usize,
}

impl EmbeddingPlaces {
    /// The gradients of the token and position tables out of that of their segment.
    pub(super) fn of_segment<'a, T>(&self, segment: &'a mut [T]) -> (&'a mut [T], &'a mut [T]) {
        split(segment, [self.tokens.clone(), self.positions.clone()], self.segment_start)
    }
}

/// All tensors of a model.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// From the first block to the last.
    pub(super) blocks: Vec<BlockPlaces>,
    pub(super) final_norm: Pair,
    pub(super) final_norm_segment: usize,
    pub(super) embeddings: EmbeddingPlaces,
}

impl Places {
    /// Resolves every name.
    ///
    /// # Panics
    /// When the layout lacks a tensor of the model or has one of another size.
    pub(super) fn new(layout: &Layout, config: &ModelConfig) -> Self {
        let reference = Layout::new(config);
        let same = |(a, b): (&crate::layout::Tensor, &crate::layout::Tensor)| {
            a.name == b.name && a.shape == b.shape
        };
        let tensors = layout.tensors().iter().zip(reference.tensors());
        let equal = layout.tensors().len() == reference.tensors().len();
        assert!(equal && tensors.into_iter().all(same), "a layout of this model");
        let finder = Finder { layout };
        Self {
            blocks: (0..config.layers).map(|layer| finder.block(layer)).collect(),
            final_norm: finder.pair("final_norm", "ln_f"),
            final_norm_segment: finder.segment("final_norm"),
            embeddings: EmbeddingPlaces {
                segment: finder.segment("embeddings"),
                tokens: finder.range("wte.weight"),
                positions: finder.range("wpe.weight"),
                segment_start: finder.start("embeddings"),
            },
        }
    }
}

struct Finder<'a> {
    layout: &'a Layout,
}

impl Finder<'_> {
    fn block(&self, layer: usize) -> BlockPlaces {
        let segment = format!("h.{layer}");
        let pair = |part: &str| self.pair(&segment, &format!("{segment}.{part}"));
        BlockPlaces {
            segment: self.segment(&segment),
            norm1: pair("ln_1"),
            attention_in: pair("attn.c_attn"),
            attention_out: pair("attn.c_proj"),
            norm2: pair("ln_2"),
            expand: pair("mlp.c_fc"),
            contract: pair("mlp.c_proj"),
        }
    }

    fn pair(&self, segment: &str, name: &str) -> Pair {
        Pair {
            weight: self.range(&format!("{name}.weight")),
            bias: self.range(&format!("{name}.bias")),
            segment_start: self.start(segment),
        }
    }

    fn range(&self, name: &str) -> Range<usize> {
        let tensor = self.layout.tensor(name);
        tensor.unwrap_or_else(|| panic!("tensor {name} in the layout")).range.clone()
    }

    fn segment(&self, name: &str) -> usize {
        let position = self.layout.segments().iter().position(|segment| segment.name == name);
        position.unwrap_or_else(|| panic!("segment {name} in the layout"))
    }

    fn start(&self, segment: &str) -> usize {
        self.layout.segments()[self.segment(segment)].range.start
    }
}

/// Two parts of a segment at once.
fn split<T>(segment: &mut [T], ranges: [Range<usize>; 2], start: usize) -> (&mut [T], &mut [T]) {
    let parts = ranges.map(|range| range.start - start..range.end - start);
    let [first, second] = segment
        .get_disjoint_mut(parts)
        .unwrap_or_else(|error| panic!("tensors of a segment lie apart inside it: {error}"));
    (first, second)
}
