//! Ranges of a model's tensors in the flat buffers: the names of the layout, resolved once.

use std::ops::Range;

use device::{Element, View, ViewMut};

use super::linear::Linear;
use super::ops::{EmbeddingGradients, EmbeddingTables};
use crate::layout::{Tensor, head_rows};
use crate::ops::{Affine, AffineMut};
use crate::{Layout, ModelConfig};

/// A segment of the layout: weights arrive, and gradients become complete, segment by segment.
#[derive(Debug, Clone)]
pub(super) struct SegmentRange {
    /// Which of [`Layout::segments`].
    pub(super) index: usize,
    /// In the flat buffers.
    pub(super) range: Range<usize>,
}

/// Ranges of a weight and its bias in their segment.
#[derive(Debug, Clone)]
pub(super) struct AffineRanges {
    pub(super) weight: Range<usize>,
    pub(super) bias: Option<Range<usize>>,
}

impl AffineRanges {
    /// Weight and bias out of the weights of their segment.
    pub(super) fn of<'a, T: Element>(&self, segment: View<'a, T>) -> Affine<'a, T> {
        let bias = self.bias.clone().map(|bias| segment.slice(bias));
        Affine { weight: segment.slice(self.weight.clone()), bias }
    }

    /// The same out of the gradients of their segment.
    pub(super) fn of_mut<'a, T: Element>(&self, segment: ViewMut<'a, T>) -> AffineMut<'a, T> {
        let (weight, bias) = split(segment, &self.weight, self.bias.as_ref());
        AffineMut { weight, bias }
    }
}

/// The tensors of one block.
#[derive(Debug, Clone)]
pub(super) struct BlockRanges {
    pub(super) segment: SegmentRange,
    pub(super) norm1: AffineRanges,
    pub(super) norm2: AffineRanges,
    /// In the order of [`Linear::ALL`].
    linear: [AffineRanges; Linear::ALL.len()],
}

impl BlockRanges {
    /// Weight and bias of one linear layer.
    pub(super) fn linear(&self, linear: Linear) -> &AffineRanges {
        &self.linear[linear as usize]
    }
}

/// The token table and, in the GPT family, the position table.
#[derive(Debug, Clone)]
pub(super) struct EmbeddingRanges {
    pub(super) segment: SegmentRange,
    pub(super) tokens: Range<usize>,
    pub(super) positions: Option<Range<usize>>,
}

impl EmbeddingRanges {
    /// Number of tables.
    pub(super) fn count(&self) -> usize {
        1 + usize::from(self.positions.is_some())
    }

    /// Both tables out of the weights of their segment.
    pub(super) fn of<'a, E: Element>(&self, segment: View<'a, E>) -> EmbeddingTables<'a, E> {
        EmbeddingTables {
            tokens: segment.slice(self.tokens.clone()),
            positions: self.positions.clone().map(|range| segment.slice(range)),
        }
    }

    /// The same out of the gradients of their segment.
    pub(super) fn of_mut<'a, T: Element>(
        &self,
        segment: ViewMut<'a, T>,
    ) -> EmbeddingGradients<'a, T> {
        let (tokens, positions) = split(segment, &self.tokens, self.positions.as_ref());
        EmbeddingGradients { tokens, positions }
    }
}

/// The final norm, alone in its segment.
#[derive(Debug, Clone)]
pub(super) struct FinalNormRanges {
    pub(super) segment: SegmentRange,
    pub(super) norm: AffineRanges,
}

/// The head's matrix: the token table (a tied head), or one of its own.
#[derive(Debug, Clone)]
pub(super) struct HeadRanges {
    /// The segment that holds it.
    pub(super) segment: SegmentRange,
    /// Whether it is the token table, whose gradient is complete after the embeddings'.
    pub(super) is_tied: bool,
    /// The matrix with its rows of padding, which are zero.
    pub(super) table: Range<usize>,
}

/// All tensors of a model.
#[derive(Debug, Clone)]
pub(crate) struct ParameterRanges {
    pub(super) head: HeadRanges,
    pub(super) final_norm: FinalNormRanges,
    /// From the first block to the last.
    pub(super) blocks: Vec<BlockRanges>,
    pub(super) embeddings: EmbeddingRanges,
}

impl ParameterRanges {
    /// Resolves every name.
    ///
    /// # Panics
    /// When the layout lacks a tensor of the model or has one of another size.
    pub(crate) fn new(layout: &Layout, config: &ModelConfig) -> Self {
        let expected = Layout::new(config);
        let name_and_shape = |tensor: &Tensor| (tensor.name.clone(), tensor.shape.clone());
        let tensors = layout.tensors().iter().map(name_and_shape);
        let is_of_model = tensors.eq(expected.tensors().iter().map(name_and_shape));
        assert!(is_of_model, "a layout of this model");
        Self {
            head: head(layout, config),
            final_norm: final_norm(layout),
            blocks: (0..config.layers).map(|layer| block(layout, layer)).collect(),
            embeddings: embeddings(layout),
        }
    }
}

fn head(layout: &Layout, config: &ModelConfig) -> HeadRanges {
    let is_tied = config.is_tied();
    let (segment, table) =
        if is_tied { ("embeddings", "wte.weight") } else { ("head", "lm_head.weight") };
    let finder = Finder::new(layout, segment);
    let table = finder.range(table);
    let table = table.start..table.start + head_rows(config.vocabulary) * config.width;
    HeadRanges { is_tied, table, segment: finder.segment }
}

fn final_norm(layout: &Layout) -> FinalNormRanges {
    let finder = Finder::new(layout, "final_norm");
    FinalNormRanges { norm: finder.affine("ln_f"), segment: finder.segment }
}

fn embeddings(layout: &Layout) -> EmbeddingRanges {
    let finder = Finder::new(layout, "embeddings");
    EmbeddingRanges {
        tokens: finder.range("wte.weight"),
        positions: finder.find("wpe.weight"),
        segment: finder.segment,
    }
}

fn block(layout: &Layout, layer: usize) -> BlockRanges {
    let name = format!("h.{layer}");
    let finder = Finder::new(layout, &name);
    let affine = |part: &str| finder.affine(&format!("{name}.{part}"));
    let has_gate = finder.find(&format!("{name}.mlp.gate_up.weight")).is_some();
    BlockRanges {
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
    segment: SegmentRange,
}

impl<'a> Finder<'a> {
    fn new(layout: &'a Layout, name: &str) -> Self {
        let index = layout.segments().iter().position(|segment| segment.name == name);
        let index = index.unwrap_or_else(|| panic!("segment {name} in the layout"));
        let range = layout.segments()[index].range.clone();
        Self { layout, segment: SegmentRange { index, range } }
    }

    fn affine(&self, name: &str) -> AffineRanges {
        let weight = self.range(&format!("{name}.weight"));
        AffineRanges { weight, bias: self.find(&format!("{name}.bias")) }
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

/// One range of a segment, or two at once, in either order.
fn split<'a, T: Element>(
    segment: ViewMut<'a, T>,
    first: &Range<usize>,
    second: Option<&Range<usize>>,
) -> (ViewMut<'a, T>, Option<ViewMut<'a, T>>) {
    let Some(second) = second else { return (segment.slice(first.clone()), None) };
    if first.start > second.start {
        let (before, after) = segment.split_at(first.start);
        return (after.slice(0..first.len()), Some(before.slice(second.clone())));
    }
    let (before, after) = segment.split_at(second.start);
    (before.slice(first.clone()), Some(after.slice(0..second.len())))
}
