//! The parts of a stage, divided into chunks that are worked on one after another.

use std::ops::Range;

use super::stage::Stage;

/// Chunks are multiples of this many elements: whole cache lines.
const ALIGN_ELEMENTS: usize = 32;

/// A stage and the chunks of its parts.
#[derive(Debug, Clone)]
pub(crate) struct Chunks {
    pub(crate) stage: Stage,
    /// Members of the group.
    members: usize,
    /// Chunks of the longest part.
    pub(crate) count: usize,
    /// Elements of one chunk.
    elements: usize,
}

impl Chunks {
    /// Divides every part into chunks of at most so many bytes and elements.
    pub(crate) fn new(stage: Stage, members: usize, bytes_max: usize, elements_max: usize) -> Self {
        let elements = bytes_max / stage.buffer.dtype().bytes() / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
        let elements = elements.clamp(1, elements_max);
        let count = stage.partition.longest(members).div_ceil(elements);
        Self { stage, members, count, elements }
    }

    /// A chunk of a member's part, in elements of the buffer; empty where the part has no more.
    pub(crate) fn range(&self, member: usize, chunk: usize) -> Range<usize> {
        let part = self.stage.partition.part(member, self.members);
        let boundary = |chunk: usize| (part.start + chunk * self.elements).min(part.end);
        boundary(chunk)..boundary(chunk + 1)
    }

    /// Address of an element of the buffer.
    pub(crate) fn address(&self, element: usize) -> *mut u8 {
        let buffer = self.stage.buffer;
        debug_assert!(element <= buffer.len(), "inside the buffer");
        buffer.start().as_ptr().wrapping_add(element * buffer.dtype().bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawBuffer;
    use crate::stages::partition::Partition;
    use crate::stages::stage::StageKind;

    #[test]
    fn chunks_of_a_part_cover_it_in_order() {
        let mut buffer = [0_f64; 1000];
        for (bytes_max, elements_max, elements) in
            [(1 << 10, 1 << 20, 128), (1 << 20, 7, 7), (1, 5, 1)]
        {
            let stage = Stage {
                kind: StageKind::AllReduce,
                buffer: RawBuffer::of(&mut buffer),
                partition: Partition::Even { len: 1000 },
            };
            let chunks = Chunks::new(stage, 3, bytes_max, elements_max);
            for member in 0..3 {
                let part = chunks.stage.partition.part(member, 3);
                let mut end = part.start;
                for chunk in 0..chunks.count {
                    let range = chunks.range(member, chunk);
                    assert_eq!(range.start, end, "{elements} elements, chunk {chunk}");
                    assert!(range.len() <= elements);
                    end = range.end;
                }
                assert_eq!(end, part.end);
                assert_eq!(chunks.range(member, chunks.count).len(), 0);
            }
        }
    }
}
