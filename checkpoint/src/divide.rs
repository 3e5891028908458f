//! Who writes what when every rank holds the same state.

use std::ops::Range;

use crate::{Dtype, TensorBox};

/// One rank's box of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Whole rows of the tensor; the dtype is F32, change it where the data is not.
    pub tensor: TensorBox,
    /// The same elements as a range of the tensor's row-major elements.
    pub elements: Range<usize>,
}

/// The boxes that `rank` writes so that `world` ranks write each element exactly once.
///
/// All tensors, `(name, shape)`, are taken as one sequence of elements and cut into `world` equal
/// pieces; a cut moves to the nearest row of the tensor that it falls into. So a rank has at most
/// one row (of the widest tensor) more or less than an equal share, and at most one box of a
/// tensor. Tensors without elements are in nobody's share.
///
/// # Panics
/// When `rank` is not below `world`.
pub fn divide(tensors: &[(String, Vec<usize>)], world: usize, rank: usize) -> Vec<Share> {
    assert!(rank < world, "rank {rank} of {world}");
    let total = tensors.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    let (start, end) = (cut(total, world, rank), cut(total, world, rank + 1));
    let mut shares = Vec::new();
    let mut first = 0;
    for (name, shape) in tensors {
        let len: usize = shape.iter().product();
        let row = (len / shape.first().copied().unwrap_or(1).max(1)).max(1);
        let nearest = |cut: usize| {
            let inside = cut.clamp(first, first + len) - first;
            (inside + row / 2) / row * row
        };
        let elements = nearest(start)..nearest(end);
        if !elements.is_empty() {
            shares.push(share(name, shape, row, elements));
        }
        first += len;
    }
    shares
}

/// First element of a rank's equal share. The product of two counts may exceed 64 bits.
fn cut(total: usize, world: usize, rank: usize) -> usize {
    (total as u128 * rank as u128 / world as u128) as usize
}

fn share(name: &str, shape: &[usize], row: usize, elements: Range<usize>) -> Share {
    let mut tensor = TensorBox::whole(name, Dtype::F32, shape);
    if !shape.is_empty() {
        tensor.offset[0] = elements.start / row;
        tensor.extent[0] = elements.len() / row;
    }
    Share { tensor, elements }
}
