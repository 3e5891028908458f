//! The layout of the flat buffers (weights, gradients, both Adam moments).
//!
//! Tensors are ordered as their gradients become ready in backward: an untied head, final norm,
//! blocks from last to first, embeddings. A segment is the tensors that become ready together;
//! every tensor starts at a multiple of [`ALIGN`] elements. Padding between tensors is zero.

mod build;
mod uses;

use std::ops::Range;

pub use uses::Uses;

/// Alignment of every tensor in elements.
pub const ALIGN: usize = 128;

/// The head's matrix is followed by zeros up to a multiple of this many rows: a product with an odd
/// number of rows, such as GPT-2's 50,257, is seven times slower on an H100.
const HEAD_ROWS_MULTIPLE: usize = 64;

/// Rows of the head's matrix of a vocabulary, with those that are only padding.
pub fn head_rows(vocabulary: usize) -> usize {
    vocabulary.next_multiple_of(HEAD_ROWS_MULTIPLE)
}

/// Initial values of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Normal around zero with this standard deviation.
    Normal(f32),
}

/// One tensor of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Name in the style of Hugging Face's GPT-2, as in `h.0.attn.c_attn.weight`.
    pub name: String,
    /// Row-major shape; matrices are (out, in).
    pub shape: Vec<usize>,
    /// Range in the flat buffer, in elements.
    pub range: Range<usize>,
    /// Weight decay applies (matrices and embeddings, not norms and biases).
    pub decay: bool,
    /// Initial values.
    pub init: Init,
}

/// Tensors whose gradients become ready together.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// `head`, `final_norm`, `h.N` or `embeddings`.
    pub name: String,
    /// Range in the flat buffer, in elements; both ends are multiples of [`ALIGN`].
    pub range: Range<usize>,
    /// Range of [`Layout::tensors`] in this segment.
    pub tensors: Range<usize>,
}

/// The flat layout of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    tensors: Vec<Tensor>,
    segments: Vec<Segment>,
    len: usize,
}

impl Layout {
    /// Returns a layout with the starts of segments that a bucket plan gives, in a buffer of `len`
    /// elements.
    ///
    /// # Panics
    /// Panics if the starts overlap, are not aligned, or do not fit.
    pub fn with_starts(&self, starts: &[usize], len: usize) -> Self {
        assert_eq!(starts.len(), self.segments.len(), "one start per segment");
        let mut placed = self.clone();
        let mut end = 0;
        for (segment, &start) in placed.segments.iter_mut().zip(starts) {
            assert!(start >= end && start.is_multiple_of(ALIGN), "segment start {start}");
            let old = segment.range.start;
            for tensor in &mut placed.tensors[segment.tensors.clone()] {
                let offset = tensor.range.start - old + start;
                tensor.range = offset..offset + tensor.range.len();
            }
            segment.range = start..start + segment.range.len();
            end = segment.range.end;
        }
        assert!(end <= len, "segments end at {end}, buffer has {len} elements");
        placed.len = len;
        placed
    }

    /// All tensors in buffer order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// All segments in the order in which their gradients become ready.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Length of a flat buffer in elements, padding included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the layout is empty (never, for a valid model).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// N, number of parameters, padding excluded, a tied tensor once.
    pub fn parameters(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.range.len()).sum()
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The index of the tensor that an element of a flat buffer belongs to; `None` for padding.
    pub fn tensor_at(&self, element: usize) -> Option<usize> {
        self.tensors.iter().position(|tensor| tensor.range.contains(&element))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;
    use crate::config::Family;

    /// Dimensions of which no product is a multiple of [`ALIGN`].
    fn odd() -> ModelConfig {
        ModelConfig {
            family: Family::Gpt,
            layers: 3,
            width: 15,
            heads: 5,
            feed_forward: 33,
            vocabulary: 101,
            context: 19,
        }
    }

    pub(super) fn names(layout: &Layout, segment: usize) -> Vec<&str> {
        let tensors = layout.segments()[segment].tensors.clone();
        layout.tensors()[tensors].iter().map(|tensor| tensor.name.as_str()).collect()
    }

    pub(super) fn check_order_and_alignment(layout: &Layout) {
        let mut end = 0;
        let mut next_tensor = 0;
        for segment in layout.segments() {
            assert!(segment.range.start >= end, "{} overlaps", segment.name);
            assert_eq!(segment.tensors.start, next_tensor, "{} skips a tensor", segment.name);
            end = segment.range.start;
            for tensor in &layout.tensors()[segment.tensors.clone()] {
                assert!(tensor.range.start >= end, "{} overlaps", tensor.name);
                assert!(tensor.range.start.is_multiple_of(ALIGN), "{} is not aligned", tensor.name);
                assert_eq!(tensor.range.len(), tensor.shape.iter().product::<usize>());
                end = tensor.range.end;
            }
            assert!(segment.range.end >= end && segment.range.end.is_multiple_of(ALIGN));
            end = segment.range.end;
            next_tensor = segment.tensors.end;
        }
        assert_eq!(next_tensor, layout.tensors().len());
        assert!(end <= layout.len());
    }

    #[test]
    fn tensors_come_in_the_order_of_backward() {
        let layout = Layout::new(&odd());
        let segments: Vec<&str> = layout.segments().iter().map(|s| s.name.as_str()).collect();
        assert_eq!(segments, ["final_norm", "h.2", "h.1", "h.0", "embeddings"]);
        assert_eq!(names(&layout, 0), ["ln_f.weight", "ln_f.bias"]);
        assert_eq!(names(&layout, 4), ["wpe.weight", "wte.weight"]);
        let block = "mlp.c_proj mlp.c_fc ln_2 attn.c_proj attn.c_attn ln_1".split(' ');
        let block: Vec<String> = block
            .flat_map(|part| [format!("h.2.{part}.weight"), format!("h.2.{part}.bias")])
            .collect();
        assert_eq!(names(&layout, 1), block);
    }

    #[test]
    fn every_tensor_is_aligned_and_counted_once() {
        let layout = Layout::new(&odd());
        check_order_and_alignment(&layout);
        let (c, f, l) = (15, 33, 3);
        let block = 4 * c * c + 4 * c + 2 * c * f + f + c + 4 * c; // attention, feed-forward, norms
        assert_eq!(layout.parameters(), l * block + 2 * c + (101 + 19) * c);
        assert!(layout.len() > layout.parameters(), "padding counts in len alone");
        assert_eq!(layout.len(), layout.segments().last().unwrap().range.end);
    }

    #[test]
    fn matrices_decay_and_vectors_do_not() {
        let layout = Layout::new(&odd());
        for tensor in layout.tensors() {
            assert_eq!(tensor.decay, tensor.shape.len() == 2, "{}", tensor.name);
        }
        let init = |name: &str| layout.tensor(name).unwrap().init;
        let residual = 0.02 / 6.0_f32.sqrt(); // two residual additions in each of three blocks
        assert_eq!(init("h.1.attn.c_proj.weight"), Init::Normal(residual));
        assert_eq!(init("h.1.mlp.c_proj.weight"), Init::Normal(residual));
        assert_eq!(init("h.1.mlp.c_fc.weight"), Init::Normal(0.02));
        assert_eq!(init("ln_f.weight"), Init::Ones);
        assert_eq!(init("h.1.attn.c_attn.bias"), Init::Zeros);
        assert_eq!(layout.tensor("h.3.ln_1.bias"), None);
    }

    #[test]
    fn new_starts_move_segments_and_nothing_else() {
        let tight = Layout::new(&odd());
        let gap = |i: usize| ALIGN * (i + 1);
        let starts: Vec<usize> =
            tight.segments().iter().enumerate().map(|(i, s)| s.range.start + gap(i)).collect();
        let placed = tight.with_starts(&starts, tight.len() + gap(9));
        check_order_and_alignment(&placed);
        assert_eq!(placed.len(), tight.len() + gap(9));
        assert_eq!(placed.parameters(), tight.parameters());
        for (i, (old, new)) in tight.segments().iter().zip(placed.segments()).enumerate() {
            assert_eq!(new.range, starts[i]..starts[i] + old.range.len());
            let pairs = tight.tensors()[old.tensors.clone()]
                .iter()
                .zip(&placed.tensors()[new.tensors.clone()]);
            for (old, new) in pairs {
                let expected = Tensor {
                    range: old.range.start + gap(i)..old.range.end + gap(i),
                    ..old.clone()
                };
                assert_eq!(*new, expected);
            }
        }
        let unmoved: Vec<usize> = tight.segments().iter().map(|s| s.range.start).collect();
        assert_eq!(tight.with_starts(&unmoved, tight.len()), tight);
    }

    #[test]
    #[should_panic(expected = "segment start")]
    fn overlapping_starts_are_refused() {
        let tight = Layout::new(&odd());
        tight.with_starts(&[0; 5], tight.len());
    }

    #[test]
    #[should_panic(expected = "buffer has")]
    fn a_buffer_that_is_too_short_is_refused() {
        let tight = Layout::new(&odd());
        let starts: Vec<usize> = tight.segments().iter().map(|s| s.range.start).collect();
        tight.with_starts(&starts, tight.len() - ALIGN);
    }
}
