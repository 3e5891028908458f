//! The part of an attention that one execution computes, by the addresses it starts at.

use crate::ops::attention::Shape;

/// Some sequences, and some key and value heads of each with their queries' heads. An attention is
/// divided into equal parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// A divisor of B.
    pub(super) sequences: usize,
    /// A divisor of K; K itself where there is more than one sequence.
    pub(super) key_value_heads: usize,
}

/// Start of a part, in elements from the start of each tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    /// In (B, T, (H + 2 K) D).
    pub(super) query: usize,
    pub(super) key: usize,
    pub(super) value: usize,
    /// In (B, T, H D).
    pub(super) output: usize,
    /// In (B, H, T).
    pub(super) stats: usize,
}

impl Part {
    /// The whole attention.
    pub(super) fn whole(shape: &Shape) -> Self {
        Self { sequences: shape.sequences, key_value_heads: shape.key_value_heads }
    }

    /// All, then one sequence with fewer and fewer of its heads.
    pub(super) fn candidates(shape: &Shape) -> Vec<Self> {
        let heads = shape.key_value_heads;
        let divisors = (1..=heads).rev().filter(|&part| heads.is_multiple_of(part));
        let of_one = divisors.map(|key_value_heads| Self { sequences: 1, key_value_heads });
        let mut candidates = vec![Self::whole(shape)];
        candidates.extend(of_one);
        candidates.dedup();
        candidates
    }

    /// Query heads of a part.
    pub(super) fn heads(&self, shape: &Shape) -> usize {
        self.key_value_heads * shape.group()
    }

    /// Starts of all parts.
    pub(super) fn starts(self, shape: Shape) -> impl Iterator<Item = Start> {
        let sequences = (0..shape.sequences).step_by(self.sequences);
        let heads = move || (0..shape.key_value_heads).step_by(self.key_value_heads);
        sequences.flat_map(move |sequence| heads().map(move |head| start(&shape, sequence, head)))
    }
}

/// The start at a sequence and a key head.
fn start(shape: &Shape, sequence: usize, key_head: usize) -> Start {
    let Shape { tokens, heads, key_value_heads, head_width, .. } = *shape;
    let query_head = key_head * shape.group();
    let row = sequence * tokens;
    let column = |head: usize| row * shape.qkv_width() + head * head_width;
    Start {
        query: column(query_head),
        key: column(heads + key_head),
        value: column(heads + key_value_heads + key_head),
        output: row * shape.width() + query_head * head_width,
        stats: (sequence * heads + query_head) * tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape =
        Shape { sequences: 2, tokens: 10, heads: 12, key_value_heads: 6, head_width: 8 };

    #[test]
    fn parts_become_smaller_and_divide_the_whole() {
        let parts = Part::candidates(&SHAPE);
        let sizes = parts.iter().map(|part| part.sequences * part.key_value_heads);
        assert_eq!(sizes.collect::<Vec<_>>(), [12, 6, 3, 2, 1]);
        for part in parts {
            let count = part.starts(SHAPE).count();
            assert_eq!(count * part.sequences * part.key_value_heads, 12, "{part:?}");
        }
    }

    #[test]
    fn a_single_sequence_is_not_tried_twice() {
        let parts = Part::candidates(&Shape { sequences: 1, ..SHAPE });
        assert_eq!(parts.len(), 4);
    }

    #[test]
    fn a_part_starts_at_its_sequence_and_heads() {
        let part = Part { sequences: 1, key_value_heads: 3 };
        let starts: Vec<_> = part.starts(SHAPE).collect();
        assert_eq!(starts[0], Start { query: 0, key: 96, value: 144, output: 0, stats: 0 });
        // Rows of qkv have 24 heads of 8, those of the output 12.
        let second_sequence = Start {
            query: 10 * 192 + 6 * 8,
            key: 10 * 192 + (12 + 3) * 8,
            value: 10 * 192 + (18 + 3) * 8,
            output: 10 * 96 + 6 * 8,
            stats: (12 + 6) * 10,
        };
        assert_eq!(starts[3], second_sequence);
    }
}
