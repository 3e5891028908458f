//! Arithmetic of boxes: intersection, difference, and ranges that are contiguous in two boxes.

/// A box without a name: `offset[d] .. offset[d] + extent[d]` in each dimension d.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) offset: Vec<usize>,
    pub(crate) extent: Vec<usize>,
}

/// Elements that are contiguous in both of two boxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContiguousRun {
    /// Start in the first box, in elements.
    pub(crate) source: usize,
    /// Start in the second box, in elements.
    pub(crate) target: usize,
    /// Number of elements.
    pub(crate) elements: usize,
}

impl Region {
    fn end(&self, dimension: usize) -> usize {
        self.offset[dimension] + self.extent[dimension]
    }

    /// The elements that both have; `None` when there are none.
    pub(crate) fn intersect(&self, other: &Self) -> Option<Self> {
        let mut offset = Vec::new();
        let mut extent = Vec::new();
        for dimension in 0..self.offset.len() {
            let start = self.offset[dimension].max(other.offset[dimension]);
            let end = self.end(dimension).min(other.end(dimension));
            if start >= end {
                return None;
            }
            offset.push(start);
            extent.push(end - start);
        }
        Some(Self { offset, extent })
    }

    /// Returns the boxes that are left without `hole`, which lies inside: at most two per
    /// dimension.
    pub(crate) fn subtract(&self, hole: &Self) -> Vec<Self> {
        let mut rest = Vec::new();
        let mut core = self.clone();
        for dimension in 0..self.offset.len() {
            let before = core.offset[dimension]..hole.offset[dimension];
            let after = hole.end(dimension)..core.end(dimension);
            for range in [before, after] {
                if !range.is_empty() {
                    let mut slab = core.clone();
                    slab.offset[dimension] = range.start;
                    slab.extent[dimension] = range.len();
                    rest.push(slab);
                }
            }
            core.offset[dimension] = hole.offset[dimension];
            core.extent[dimension] = hole.extent[dimension];
        }
        rest
    }

    /// Row-major number, within this box, of the element at a global index.
    fn number_of(&self, index: &[usize]) -> usize {
        let mut number = 0;
        for (dimension, &position) in index.iter().enumerate() {
            number = number * self.extent[dimension] + position - self.offset[dimension];
        }
        number
    }

    /// The elements of this region, which lies inside of both `source` and `target`, as runs that
    /// are contiguous in both.
    pub(crate) fn contiguous_runs(&self, source: &Self, target: &Self) -> Vec<ContiguousRun> {
        let outer = self.outer_dimensions(source, target);
        let count: usize = self.extent[..outer].iter().product();
        let elements = self.extent[outer..].iter().product();
        let mut index = self.offset.clone();
        let mut runs = Vec::with_capacity(count);
        for _ in 0..count {
            runs.push(ContiguousRun {
                source: source.number_of(&index),
                target: target.number_of(&index),
                elements,
            });
            self.advance(&mut index[..outer]);
        }
        runs
    }

    /// Returns the number of outer dimensions that must be iterated over: all inside of them is
    /// contiguous in both boxes. Only the outermost of the inner dimensions may be a part of that
    /// of a box.
    fn outer_dimensions(&self, source: &Self, target: &Self) -> usize {
        let is_whole = |&dimension: &usize| {
            let extent = self.extent[dimension];
            extent == source.extent[dimension] && extent == target.extent[dimension]
        };
        let whole = (0..self.offset.len()).rev().take_while(is_whole).count();
        self.offset.len().saturating_sub(whole + 1)
    }

    /// Steps an index of the outer dimensions to the next one in row-major order.
    fn advance(&self, index: &mut [usize]) {
        for dimension in (0..index.len()).rev() {
            index[dimension] += 1;
            if index[dimension] < self.end(dimension) {
                break;
            }
            index[dimension] = self.offset[dimension];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(offset: &[usize], extent: &[usize]) -> Region {
        Region { offset: offset.to_vec(), extent: extent.to_vec() }
    }

    #[test]
    fn a_hole_and_the_rest_cover_each_element_once() {
        let whole = region(&[2, 3, 1], &[4, 5, 3]);
        let hole = region(&[3, 4, 1], &[2, 2, 2]);
        let mut pieces = whole.subtract(&hole);
        pieces.push(hole);
        for a in 2..6 {
            for b in 3..8 {
                for c in 1..4 {
                    let point = region(&[a, b, c], &[1, 1, 1]);
                    let hits = pieces.iter().filter(|p| p.intersect(&point).is_some()).count();
                    assert_eq!(hits, 1, "element {a},{b},{c}");
                }
            }
        }
        assert!(whole.subtract(&whole).is_empty());
    }

    #[test]
    fn runs_are_as_long_as_both_boxes_allow() {
        let source = region(&[0, 0], &[4, 6]);
        let rows = region(&[1, 0], &[2, 6]);
        assert_eq!(
            rows.contiguous_runs(&source, &rows),
            [ContiguousRun { source: 6, target: 0, elements: 12 }]
        );
        let columns = region(&[1, 2], &[2, 3]);
        let expected = [
            ContiguousRun { source: 8, target: 0, elements: 3 },
            ContiguousRun { source: 14, target: 3, elements: 3 },
        ];
        assert_eq!(columns.contiguous_runs(&source, &columns), expected);
        let scalar = region(&[], &[]);
        assert_eq!(
            scalar.contiguous_runs(&scalar, &scalar),
            [ContiguousRun { source: 0, target: 0, elements: 1 }]
        );
    }
}
