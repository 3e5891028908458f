//! SwiGLU, forward and backward.

use half::bf16;

use super::device::{Bound, Memory, Numbers};
use crate::ops::kernels::CudaElement;
use crate::ops::swiglu;
use crate::ops::swiglu::cuda::SwiGlu;

/// Rows and F: one pack, an odd number of packs, and more than the largest grid computes in one
/// pass.
const SHAPES: [(usize, usize); 4] = [(1, 8), (3, 24), (67, 328), (13, 200_000)];

fn agrees<E: CudaElement>() {
    const BOUND: Bound = Bound::rounded_once(1e-6);
    let memory = Memory::new();
    let kernels = SwiGlu::new::<E>(memory.device()).unwrap();
    for (rows, width) in SHAPES {
        let what = |step| format!("{step} of {rows} rows of {width}");
        let gate_up = Numbers::<E>::uniform(rows * 2 * width, 1, 5.0);
        let dhidden = Numbers::<E>::uniform(rows * width, 2, 1.0);
        let mut in_place = memory.upload(&gate_up.elements);
        let mut hidden = memory.unwritten::<E>(rows * width);
        kernels.forward(hidden.view_mut(), in_place.view(), width).unwrap();
        let gradient = memory.upload(&dhidden.elements);
        kernels.backward(in_place.view_mut(), gradient.view(), width).unwrap();

        let mut exact_hidden = vec![0.0; rows * width];
        let mut exact_gate_up = gate_up.exact;
        swiglu::recompute(&mut exact_hidden, &mut exact_gate_up, width);
        swiglu::backward(&mut exact_gate_up, &dhidden.exact, width);
        BOUND.check(&what("forward"), &memory.download(&hidden), &exact_hidden);
        BOUND.check(&what("backward"), &memory.download(&in_place), &exact_gate_up);
    }
}

#[test]
fn forward_and_backward() {
    agrees::<f32>();
    agrees::<bf16>();
}
