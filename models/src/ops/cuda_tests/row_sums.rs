//! Sums over rows, written and added.

use half::bf16;

use super::device::{Bound, Memory, Numbers};
use crate::ops::kernels::CudaElement;
use crate::ops::matmul::{self, Sums};
use crate::ops::row_sums::cuda::{ColumnSums, Partials};

/// Rows and columns: one row, parts that are not equal, more columns than a block has, fewer parts
/// because of them, and as many parts as there may be.
const SHAPES: [(usize, usize); 6] =
    [(1, 8), (31, 24), (67, 72), (100, 136), (8300, 520), (16_500, 8)];

fn agrees<E: CudaElement>() {
    const BOUND: Bound = Bound::wide(2e-6);
    let memory = Memory::new();
    let kernels = ColumnSums::new::<E>(memory.device()).unwrap();
    for (rows, width) in SHAPES {
        let x = Numbers::<E>::uniform(rows * width, 1, 1.0);
        let input = memory.upload(&x.elements);
        let mut partials = Partials::new(memory.allocator(), rows, 8, width);
        let mut sums = memory.unwritten(width);
        let mut exact = vec![0.0; width];
        for accumulate in [false, true] {
            matmul::backward_bias(&mut exact, &x.exact, Sums::Add);
            kernels.of(sums.view_mut(), input.view(), &mut partials, accumulate).unwrap();
            let what = format!("{rows} rows of {width}, added: {accumulate}");
            BOUND.check_wide::<E>(&what, &memory.download(&sums), &exact);
        }
    }
}

#[test]
fn columns() {
    agrees::<f32>();
    agrees::<bf16>();
}
