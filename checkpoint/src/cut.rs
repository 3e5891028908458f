//! The boxes of a run of a tensor's elements: what a rank has of a tensor need not end with a row.

use std::ops::Range;

use crate::{Dtype, TensorBox};

/// One box of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The box.
    pub tensor: TensorBox,
    /// The same elements as a range of the tensor's row-major elements.
    pub elements: Range<usize>,
}

/// The boxes that together hold a range of the row-major elements of a tensor, in order.
///
/// Each is as large as it can be, so there are few: at most two for each dimension and one more;
/// for a matrix the end of a row, whole rows, and the start of a row.
///
/// # Panics
/// When the range does not lie inside of the tensor.
pub fn cut(name: &str, dtype: Dtype, shape: &[usize], elements: Range<usize>) -> Vec<Share> {
    let len = shape.iter().product();
    assert!(elements.end <= len, "{name}: elements {elements:?} of {len}");
    let mut shares = Vec::new();
    let mut start = elements.start;
    while start < elements.end {
        let tensor = largest(TensorBox::whole(name, dtype, shape), start, elements.end - start);
        let end = start + tensor.elements();
        shares.push(Share { tensor, elements: start..end });
        start = end;
    }
    shares
}

/// The largest box that begins with an element and has at most `len`, contiguous ones.
fn largest(mut tensor: TensorBox, start: usize, len: usize) -> TensorBox {
    let mut inner: usize = tensor.elements(); // of one index of the dimension
    let (mut place, mut is_open) = (start, true);
    for dimension in 0..tensor.shape.len() {
        let size = tensor.shape[dimension];
        inner /= size;
        let index = place / inner;
        place %= inner;
        if !is_open {
            continue; // all of this dimension, from its start
        }
        tensor.offset[dimension] = index;
        is_open = place != 0 || len < inner;
        tensor.extent[dimension] = if is_open { 1 } else { (len / inner).min(size - index) };
    }
    tensor
}
