//! Boxes that cover a range of a tensor's elements, which may start and end within a row.

use std::ops::Range;

use super::{Dtype, TensorBox};

impl TensorBox {
    /// The boxes that together cover a range of the row-major elements of a tensor, in order.
    ///
    /// Each is as large as it can be, so there are few: at most two for each dimension and one
    /// more; for a matrix the end of a row, whole rows, and the start of a row.
    ///
    /// # Panics
    /// When the range does not lie inside of the tensor.
    pub fn covering(
        name: &str,
        dtype: Dtype,
        shape: &[usize],
        elements: Range<usize>,
    ) -> Vec<Self> {
        let len = shape.iter().product();
        assert!(elements.end <= len, "{name}: elements {elements:?} of {len}");
        let mut boxes = Vec::new();
        let mut start = elements.start;
        while start < elements.end {
            let whole = Self::whole(name, dtype, shape);
            let largest = largest_from(whole, start, elements.end - start);
            start += largest.elements();
            boxes.push(largest);
        }
        boxes
    }
}

/// Returns the largest box that begins with an element and has at most `len`, contiguous ones.
fn largest_from(mut tensor: TensorBox, start: usize, len: usize) -> TensorBox {
    let mut inner: usize = tensor.elements(); // elements of one index of the dimension
    let mut rest = start;
    for dimension in 0..tensor.shape.len() {
        let size = tensor.shape[dimension];
        inner /= size;
        let index = rest / inner;
        rest %= inner;
        tensor.offset[dimension] = index;
        if rest == 0 && len >= inner {
            tensor.extent[dimension] = (len / inner).min(size - index);
            break; // all of the inner dimensions, from their start
        }
        tensor.extent[dimension] = 1;
    }
    tensor
}
