//! Where the engine finds each tensor: the layout's names resolved once.

use std::ops::Range;

use crate::{Layout, ModelConfig};

/// A weight and, where the family has one, its bias.
#[derive(Debug, Clone)]
pub(super) struct Affine {
    weight: Range<usize>,
    bias: Option<Range<usize>>,
    /// Start of the segment that both lie in.
    segment_start: usize,
}

impl Affine {
    /// Weight and bias out of the flat weights.
    pub(super) fn of<'a, T>(&self, weights: &'a [T]) -> (&'a [T], Option<&'a [T]>) {
        (&weights[self.weight.clone()], self.bias.clone().map(|bias| &weights[bias]))
    }

    /// The gradients of weight and bias out of the gradient of their segment.
    pub(super) fn of_segment<'a, T>(
        &self,
        segment: &'a mut [T],
    ) -> (&'a mut [T], Option<&'a mut [T]>) {
        split(segment, &self.weight, self.bias.as_ref(), self.segment_start)
    }
}

/// The tensors of one block.
#[derive(Debug, Clone)]
pub(super) struct BlockPlaces {
    /// Index of the block's segment.
    pub(super) segment: usize,
    pub(super) norm1: Affine,
    pub(super) attention_in: Affine,
    pub(super) attention_out: Affine,
    pub(super) norm2: Affine,
    pub(super) expand: Affine,
    pub(super) contract: Affine,
}

/// The token table and, in the GPT family, the position table.
#[derive(Debug, Clone)]
pub(super) struct EmbeddingPlaces {
    /// Index of the tables' segment.
    pub(super) segment: usize,
    tokens: Range<usize>,
    positions: Option<Range<usize>>,
    segment_start: usize,
}

impl EmbeddingPlaces {
    /// Both tables out of the flat weights.
    pub(super) fn of<'a, T>(&self, weights: &'a [T]) -> (&'a [T], Option<&'a [T]>) {
        (&weights[self.tokens.clone()], self.positions.clone().map(|range| &weights[range]))
    }

    /// The gradients of both out of that of their segment.
    pub(super) fn of_segment<'a, T>(
        &self,
        segment: &'a mut [T],
    ) -> (&'a mut [T], Option<&'a mut [T]>) {
        split(segment, &self.tokens, self.positions.as_ref(), self.segment_start)
    }
}

/// The head's matrix: the token table or one of its own.
#[derive(Debug, Clone)]
pub(super) struct HeadPlaces {
    /// Index of the segment it lies in.
    pub(super) segment: usize,
    /// Whether nothing else lies there: its gradient is complete after the head.
    pub(super) is_alone: bool,
    table: Affine,
}

impl HeadPlaces {
    /// The matrix (V, C) out of the flat weights.
    pub(super) fn of<'a, T>(&self, weights: &'a [T]) -> &'a [T] {
        self.table.of(weights).0
    }

    /// Its gradient out of that of its segment.
    pub(super) fn of_segment<'a, T>(&self, segment: &'a mut [T]) -> &'a mut [T] {
        self.table.of_segment(segment).0
    }
}

/// All tensors of a model.
#[derive(Debug, Clone)]
pub(super) struct Places {
    pub(super) head: HeadPlaces,
    pub(super) final_norm: Affine,
    pub(super) final_norm_segment: usize,
    /// From the first block to the last.
    pub(super) blocks: Vec<BlockPlaces>,
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
        let (head, name) =
            if config.is_tied() { ("embeddings", "wte") } else { ("head", "lm_head") };
        Self {
            head: HeadPlaces {
                segment: finder.segment(head),
                is_alone: !config.is_tied(),
                table: finder.affine(head, name),
            },
            final_norm: finder.affine("final_norm", "ln_f"),
            final_norm_segment: finder.segment("final_norm"),
            blocks: (0..config.layers).map(|layer| finder.block(layer)).collect(),
            embeddings: EmbeddingPlaces {
                segment: finder.segment("embeddings"),
                tokens: finder.range("wte.weight"),
                positions: finder.find("wpe.weight"),
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
        let affine = |part: &str| self.affine(&segment, &format!("{segment}.{part}"));
        let has_gate = self.find(&format!("{segment}.mlp.gate_up.weight")).is_some();
        BlockPlaces {
            segment: self.segment(&segment),
            norm1: affine("ln_1"),
            attention_in: affine("attn.c_attn"),
            attention_out: affine("attn.c_proj"),
            norm2: affine("ln_2"),
            expand: affine(if has_gate { "mlp.gate_up" } else { "mlp.c_fc" }),
            contract: affine("mlp.c_proj"),
        }
    }

    fn affine(&self, segment: &str, name: &str) -> Affine {
        Affine {
            weight: self.range(&format!("{name}.weight")),
            bias: self.find(&format!("{name}.bias")),
            segment_start: self.start(segment),
        }
    }

    fn find(&self, name: &str) -> Option<Range<usize>> {
        self.layout.tensor(name).map(|tensor| tensor.range.clone())
    }

    fn range(&self, name: &str) -> Range<usize> {
        self.find(name).unwrap_or_else(|| panic!("tensor {name} in the layout"))
    }

    fn segment(&self, name: &str) -> usize {
        let position = self.layout.segments().iter().position(|segment| segment.name == name);
        position.unwrap_or_else(|| panic!("segment {name} in the layout"))
    }

    fn start(&self, segment: &str) -> usize {
        self.layout.segments()[self.segment(segment)].range.start
    }
}

/// One part of a segment, or two at once.
fn split<'a, T>(
    segment: &'a mut [T],
    first: &Range<usize>,
    second: Option<&Range<usize>>,
    start: usize,
) -> (&'a mut [T], Option<&'a mut [T]>) {
    let inside = |range: &Range<usize>| range.start - start..range.end - start;
    let Some(second) = second else { return (&mut segment[inside(first)], None) };
    let [first, second] = segment
        .get_disjoint_mut([inside(first), inside(second)])
        .unwrap_or_else(|error| panic!("tensors of a segment lie apart inside it: {error}"));
    (first, Some(second))
}
