//! GELU.

use half::bf16;

use super::device::{Bound, Memory, Numbers};
use crate::ops::gelu::cuda::Gelu;
use crate::ops::gelu::with_slope;
use crate::ops::kernels::CudaElement;

/// One pack, a rest behind blocks, and more than the largest grid computes in one pass.
const LENGTHS: [usize; 3] = [8, 8 * 777, 3_000_000];

fn forward_agrees<E: CudaElement>() {
    const BOUND: Bound = Bound::rounded_once(1e-6);
    let memory = Memory::new();
    let gelu = Gelu::new::<E>(memory.device()).unwrap();
    for len in LENGTHS {
        let x = Numbers::<E>::uniform(len, 1, 6.0);
        let mut y = memory.unwritten::<E>(len);
        gelu.forward(y.view_mut(), memory.upload(&x.elements).view()).unwrap();
        let exact: Vec<f64> = x.exact.iter().map(|&x| with_slope(x).0).collect();
        BOUND.check(&format!("{len} elements"), &memory.download(&y), &exact);
    }
}

fn backward_agrees<E: CudaElement>() {
    const BOUND: Bound = Bound::rounded_once(2e-6);
    let memory = Memory::new();
    let gelu = Gelu::new::<E>(memory.device()).unwrap();
    for len in LENGTHS {
        let x = Numbers::<E>::uniform(len, 1, 6.0);
        let dy = Numbers::<E>::uniform(len, 2, 1.0);
        let mut dx = memory.upload(&dy.elements);
        gelu.backward(dx.view_mut(), memory.upload(&x.elements).view()).unwrap();
        let product = |(&dy, &x): (&f64, &f64)| dy * with_slope(x).1;
        let exact: Vec<f64> = dy.exact.iter().zip(&x.exact).map(product).collect();
        BOUND.check(&format!("{len} elements"), &memory.download(&dx), &exact);
    }
}

#[test]
fn backward() {
    backward_agrees::<f32>();
    backward_agrees::<bf16>();
}

#[test]
fn forward() {
    forward_agrees::<f32>();
    forward_agrees::<bf16>();
}
