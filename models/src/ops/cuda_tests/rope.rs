//! RoPE, forward and backward.

use device::Allocator;
use half::bf16;

use super::device::{Bound, Memory, Numbers};
use crate::ops::kernels::CudaElement;
use crate::ops::rope::Direction;
use crate::ops::rope::cuda::Rope;
use crate::ops::rope::{self, Shape, Tables};

/// B, T, the heads that are rotated, further heads, and D: heads that start at multiples of 16
/// bytes and heads that do not, and more pairs than a block has threads.
const SHAPES: [[usize; 5]; 4] =
    [[1, 1, 2, 1, 8], [2, 7, 8, 2, 20], [2, 5, 4, 2, 64], [1, 9, 3, 0, 256]];

fn agrees<E: CudaElement>() {
    const BOUND: Bound = Bound::rounded_once(1e-6);
    let memory = Memory::new();
    let kernel = Rope::new::<E>(memory.device()).unwrap();
    for shape in SHAPES {
        let [sequences, tokens, heads, others, head_width] = shape;
        let columns = (heads + others) * head_width;
        let angles: Vec<f64> = (1..=head_width / 2).map(|pair| 1.0 / pair as f64).collect();
        let tables = Tables::new(memory.allocator(), &angles, tokens);
        let exact_tables = Tables::<f64>::new(&Allocator::host(), &angles, tokens);
        let qkv = Numbers::<E>::uniform(sequences * tokens * columns, 1, 1.0);
        for direction in [Direction::Forward, Direction::Backward] {
            let mut found = memory.upload(&qkv.elements);
            let mut exact = qkv.exact.clone();
            let shape = Shape { columns, heads };
            kernel.rotate(found.view_mut(), &tables, shape, direction).unwrap();
            match direction {
                Direction::Forward => rope::forward(&mut exact, &exact_tables, shape),
                Direction::Backward => rope::backward(&mut exact, &exact_tables, shape),
            }
            BOUND.check(&format!("{direction:?} {shape:?}"), &memory.download(&found), &exact);
        }
    }
}

#[test]
fn forward_and_backward() {
    agrees::<f32>();
    agrees::<bf16>();
}
