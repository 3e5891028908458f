//! Arithmetic of boxes: intersection, difference, and the contiguous runs that two boxes share.

/// A box without a name: `offset[d] .. offset[d] + extent[d]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) offset: Vec<usize>,
    pub(crate) extent: Vec<usize>,
}

/// Elements that are contiguous in both of two boxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// Where they start in the first box, in elements.
    pub(crate) source: usize,
    /// Where they start in the second box, in elements.
    pub(crate) target: usize,
    /// How many there are.
    pub(crate) elements: usize,
}

impl Region {
    fn end(&self, dimension: usize) -> usize {
        self.offset[dimension] + self.extent[dimension]
    }

    /// What both have in common; `None` when that is nothing.
    pub(crate) fn intersect(&self, other: &Self) -> Option<Self> {
        let (mut offset, mut extent) = (Vec::new(), Vec::new());
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

    /// What is left without `hole`, which lies inside: at most two boxes for each dimension.
    pub(crate) fn subtract(&self, hole: &Self) -> Vec<Self> {
        let mut rest = Vec::new();
        let mut core = self.clone();
        for dimension in 0..self.offset.len() {
            let mut keep = |start: usize, end: usize, core: &Self| {
                if start < end {
                    let mut slab = core.clone();
                    slab.offset[dimension] = start;
                    slab.extent[dimension] = end - start;
                    rest.push(slab);
                }
            };
            keep(core.offset[dimension], hole.offset[dimension], &core);
            keep(hole.end(dimension), core.end(dimension), &core);
            core.offset[dimension] = hole.offset[dimension];
            core.extent[dimension] = hole.extent[dimension];
        }
        rest
    }

    /// Place of the element at `position` (global indices) in this box, in elements.
    fn place(&self, position: &[usize]) -> usize {
        let mut place = 0;
        for (dimension, &index) in position.iter().enumerate() {
            place = place * self.extent[dimension] + index - self.offset[dimension];
        }
        place
    }

    /// The runs of this region, which lies inside of both `source` and `target`.
    pub(crate) fn runs(&self, source: &Self, target: &Self) -> Vec<Run> {
        let (outer, elements) = self.split(source, target);
        let count: usize = self.extent[..outer].iter().product();
        let mut position = self.offset.clone();
        let mut runs = Vec::with_capacity(count);
        for _ in 0..count {
            let (source, target) = (source.place(&position), target.place(&position));
            runs.push(Run { source, target, elements });
            for dimension in (0..outer).rev() {
                position[dimension] += 1;
                if position[dimension] < self.end(dimension) {
                    break;
                }
                position[dimension] = self.offset[dimension];
            }
        }
        runs
    }

    /// How many outer dimensions must be walked, and how many elements each visit yields.
    fn split(&self, source: &Self, target: &Self) -> (usize, usize) {
        let (mut outer, mut elements) = (self.offset.len(), 1);
        while outer > 0 {
            outer -= 1;
            let extent = self.extent[outer];
            elements *= extent;
            if extent != source.extent[outer] || extent != target.extent[outer] {
                break;
            }
        }
        (outer, elements)
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
        assert_eq!(rows.runs(&source, &rows), [Run { source: 6, target: 0, elements: 12 }]);
        let columns = region(&[1, 2], &[2, 3]);
        let expected =
            [Run { source: 8, target: 0, elements: 3 }, Run { source: 14, target: 3, elements: 3 }];
        assert_eq!(columns.runs(&source, &columns), expected);
        let scalar = region(&[], &[]);
        assert_eq!(scalar.runs(&scalar, &scalar), [Run { source: 0, target: 0, elements: 1 }]);
    }
}
