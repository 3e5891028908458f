//! Operands copied into the order in which the micro-kernels read them.
//!
//! A packed element is as large as a wide element. It holds one element, widened, or, where the
//! kernel takes pairs, two that follow each other along k; a zero follows an odd k.

mod gather;
mod left;
mod right;
mod step;
mod transpose;

pub(in crate::ops) use gather::{GATHER_ROWS, gathered_row_steps};
pub(in crate::ops) use left::pack_left;
pub(in crate::ops) use right::{pack_right, pack_right_padded};
pub(in crate::ops) use transpose::{SIDE as TRANSPOSE_SIDE, transpose_block};
