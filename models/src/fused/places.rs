//! Where the engine finds each tensor: the layout's names resolved once.

use std::ops::Range;

use super::size::Linear;
use crate::{Layout, ModelConfig};

/// A segment of the layout: what weights and gradients come and go by.
#[derive(Debug, Clone)]
pub(super) struct SegmentPlace {
    /// Which of [`Layout::segments`].
    pub(super) index: usize,
    /// Place in the flat buffers.
    pub(super) range: Range<usize>,
}

/// A weight and, where the family has one, its bias: places in their segment.
#[derive(Debug, Clone)]
pub(super) struct Affine {
    weight: Range<usize>,
    bias: Option<Range<usize>>,
}

impl Affine {
    /// Weight and bias out of the weights of their segment.
    pub(super) fn of<'a, T>(&self, segment: &'a [T]) -> (&'a [T], Option<&'a [T]>) {
        (&segment[self.weight.clone()], self.bias.clone().map(|bias| &segment[bias]))
    }

    /// The same out of the gradients of their segment.
    pub(super) fn of_mut<'a, T>(&self, segment: &'a mut [T]) -> (&'a mut [T], Option<&'a mut [T]>) {
        split(segment, &self.weight, self.bias.as_ref())
    }
}

/// The tensors of one block.
#[derive(Debug, Clone)]
pub(super) struct BlockPlaces {
    pub(super) segment: SegmentPlace,
    pub(super) norm1: Affine,
    pub(super) norm2: Affine,
    /// In the order of [`Linear::ALL`].
    linear: [Affine; Linear::ALL.len()],
}

impl BlockPlaces {
    /// Weight and bias of one product.
    pub(super) fn linear(&self, linear: Linear) -> &Affine {
        &self.linear[linear as usize]
    }
}

/// The token table and, in the GPT family, the position table.
#[derive(Debug, Clone)]
pub(super) struct EmbeddingPlaces {
    pub(super) segment: SegmentPlace,
    tokens: Range<usize>,
    positions: Option<Range<usize>>,
}

impl EmbeddingPlaces {
    /// Both tables out of the weights of their segment.
    pub(super) fn of<'a, T>(&self, segment: &'a [T]) -> (&'a [T], Option<&'a [T]>) {
        (&segment[self.tokens.clone()], self.positions.clone().map(|range| &segment[range]))
    }

    /// The same out of the gradients of their segment.
    pub(super) fn of_mut<'a, T>(&self, segment: &'a mut [T]) -> (&'a mut [T], Option<&'a mut [T]>) {
        split(segment, &self.tokens, self.positions.as_ref())
    }
}

/// The final norm, alone in its segment.
#[derive(Debug, Clone)]
pub(super) struct FinalNormPlaces {
    pub(super) segment: SegmentPlace,
    pub(super) norm: Affine,
}

/// The head's matrix: the token table or one of its own.
#[derive(Debug, Clone)]
pub(super) struct HeadPlaces {
    /// The segment it lies in.
    pub(super) segment: SegmentPlace,
    /// Whether nothing else lies there: its gradient is complete after the head.
    pub(super) is_alone: bool,
    table: Affine,
}

impl HeadPlaces {
    /// The matrix (V, C) out of the weights of its segment.
    pub(super) fn of<'a, T>(&self, segment: &'a [T]) -> &'a [T] {
        self.table.of(segment).0
    }

    /// Its gradient out of that of its segment.
    pub(super) fn of_mut<'a, T>(&self, segment: &'a mut [T]) -> &'a mut [T] {
        self.table.of_mut(segment).0
    }
}

/// All tensors of a model.
#[derive(Debug, Clone)]
pub(super) struct Places {
    pub(super) head: HeadPlaces,
    pub(super) final_norm: FinalNormPlaces,
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
        let (head, table) =
            if config.is_tied() { ("embeddings", "wte") } else { ("head", "lm_head") };
        let inside = |segment: &str| Finder::new(layout, segment);
        let (head, norm, tables) = (inside(head), inside("final_norm"), inside("embeddings"));
        Self {
            head: HeadPlaces {
                is_alone: !config.is_tied(),
                table: head.affine(table),
                segment: head.segment,
            },
            final_norm: FinalNormPlaces { norm: norm.affine("ln_f"), segment: norm.segment },
            blocks: (0..config.layers).map(|layer| block(layout, layer)).collect(),
            embeddings: EmbeddingPlaces {
                tokens: tables.range("wte.weight"),
                positions: tables.find("wpe.weight"),
                segment: tables.segment,
            },
        }
    }
}

fn block(layout: &Layout, layer: usize) -> BlockPlaces {
    let name = format!("h.{layer}");
    let finder = Finder::new(layout, &name);
    let affine = |part: &str| finder.affine(&format!("{name}.{part}"));
    let has_gate = finder.find(&format!("{name}.mlp.gate_up.weight")).is_some();
    BlockPlaces {
        norm1: affine("ln_1"),
        norm2: affine("ln_2"),
        linear: Linear::ALL.map(|linear| {
            affine(match linear {
                Linear::AttentionIn => "attn.c_attn",
                Linear::AttentionOut => "attn.c_proj",
                Linear::Expand if has_gate => "mlp.gate_up",
                Linear::Expand => "mlp.c_fc",
                Linear::Contract => "mlp.c_proj",
            })
        }),
        segment: finder.segment,
    }
}

/// Finds tensors of one segment.
struct Finder<'a> {
    layout: &'a Layout,
    segment: SegmentPlace,
}

impl<'a> Finder<'a> {
    fn new(layout: &'a Layout, name: &str) -> Self {
        let index = layout.segments().iter().position(|segment| segment.name == name);
        let index = index.unwrap_or_else(|| panic!("segment {name} in the layout"));
        let range = layout.segments()[index].range.clone();
        Self { layout, segment: SegmentPlace { index, range } }
    }

    fn affine(&self, name: &str) -> Affine {
        let weight = self.range(&format!("{name}.weight"));
        Affine { weight, bias: self.find(&format!("{name}.bias")) }
    }

    fn find(&self, name: &str) -> Option<Range<usize>> {
        let start = self.segment.range.start;
        let range = &self.layout.tensor(name)?.range;
        Some(range.start - start..range.end - start)
    }

    fn range(&self, name: &str) -> Range<usize> {
        self.find(name).unwrap_or_else(|| panic!("tensor {name} in the layout"))
    }
}

/// One part of a segment, or two at once.
fn split<'a, T>(
    segment: &'a mut [T],
    first: &Range<usize>,
    second: Option<&Range<usize>>,
) -> (&'a mut [T], Option<&'a mut [T]>) {
    let Some(second) = second else { return (&mut segment[first.clone()], None) };
    let [first, second] = segment
        .get_disjoint_mut([first.clone(), second.clone()])
        .unwrap_or_else(|error| panic!("tensors of a segment lie apart inside it: {error}"));
    (first, Some(second))
}
