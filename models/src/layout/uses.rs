//! Order in which the network requests the segments' weights and their gradients.

use super::Layout;

/// Segments whose weights one micro-batch reads, in order: a static list, so that weights that are
/// sharded over ranks can be gathered ahead of their use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uses {
    /// Reads of forward, the head's last: all that an evaluation reads.
    pub forward: Vec<usize>,
    /// Reads of backward.
    pub backward: Vec<usize>,
}

impl Layout {
    /// Returns the segment of the head's matrix: the embeddings' where they are tied.
    pub fn head_segment(&self) -> usize {
        let is_head = |name: &str| name == "head";
        self.segments().iter().position(|s| is_head(&s.name)).unwrap_or(self.embeddings_segment())
    }

    /// Returns the segment of the embeddings, the last.
    fn embeddings_segment(&self) -> usize {
        self.segments().len() - 1
    }

    /// Returns the order in which the network requests weights: from the embeddings to the final
    /// norm, then the head; in backward from the final norm to the first block.
    pub fn uses(&self) -> Uses {
        let head = self.head_segment();
        let embeddings = self.embeddings_segment();
        let final_norm = if head == embeddings { 0 } else { head + 1 };
        let forward = (final_norm..=embeddings).rev().chain([head]).collect();
        Uses { forward, backward: (final_norm..embeddings).collect() }
    }
}
