//! Elements that are not finite, behind the operands of a product and in them.

use device::Allocator;
use half::bf16;

use super::super::{Epilogue, Shape, Sums, backward_input, backward_weight, forward};
use super::{elements, wide};
use crate::ops::matmul::Workspace;
use crate::ops::matmul::kernels::{pairs, singles};
use crate::ops::matmul::tile::Kernel;
use crate::ops::{Element, Float};

/// Odd lengths, with NaN behind every operand: a packed element must not reach across an edge.
fn ignores_what_follows_operands<E: Element>(kernel: &'static Kernel<E::Wide>) {
    let shape = Shape { rows: 7, inputs: 17, outputs: 65 };
    let nan = E::narrow(E::Wide::from_f64(f64::NAN));
    let mut workspace = Workspace::<E>::with_kernel(&Allocator::host(), 1, kernel);
    let with_nan = |mut data: Vec<E>| {
        data.resize(data.len() + 64, nan);
        data
    };
    let x = with_nan(elements(7 * 17, 1));
    let weight = with_nan(elements(65 * 17, 2));
    let mut y = vec![E::ZERO; 7 * 65];
    let mut dx = vec![E::ZERO; 7 * 17];
    let x = &x[..7 * 17];
    let weight = &weight[..65 * 17];
    forward(&mut y, x, weight, (None, Epilogue::Store), shape, &mut workspace);
    let dy = with_nan(y.clone());
    backward_input(&mut dx, &dy[..7 * 65], weight, None, shape, &mut workspace);
    let mut dweight = vec![E::Wide::ZERO; 65 * 17];
    backward_weight(&mut dweight, &dy[..7 * 65], x, Sums::Write, shape, &mut workspace);
    let stored = wide(&y).into_iter().chain(wide(&dx));
    let mut all = stored.chain(dweight.into_iter().map(Float::to_f64));
    assert!(all.all(f64::is_finite), "{kernel:?}");
}

#[test]
fn what_follows_the_operands_has_no_influence() {
    pairs().iter().chain(singles()).for_each(ignores_what_follows_operands::<bf16>);
    singles().iter().for_each(ignores_what_follows_operands::<f32>);
}

/// Each of them, at every position along k, in both operands.
#[test]
fn values_that_are_not_finite_propagate() {
    const NOT_A_NUMBER: [u32; 3] = [0x7fc0_0000, 0x7f80_0001, u32::MAX];
    let numbers = NOT_A_NUMBER.map(f32::from_bits).into_iter();
    let numbers = numbers.chain([f32::INFINITY, f32::NEG_INFINITY]);
    let shape = Shape { rows: 3, inputs: 70, outputs: 20 };
    let turned = Shape { rows: 70, inputs: 20, outputs: 3 };
    for (kernel, number) in
        numbers.flat_map(|number| singles().iter().map(move |kernel| (kernel, number)))
    {
        let mut workspace = Workspace::with_kernel(&Allocator::host(), 1, kernel);
        for at in 0..70 {
            // One of the left operand's rows and one of the right one's columns, k along rows of
            // memory, then across.
            let mut x = vec![1.0; 3 * 70];
            let mut weight = vec![1.0; 20 * 70];
            (x[70 + at], weight[5 * 70 + at]) = (number, number);
            let mut y = vec![0.0; 3 * 20];
            let mut dweight = vec![0.0; 3 * 20];
            forward(&mut y, &x, &weight, (None, Epilogue::Store), shape, &mut workspace);
            let mut dy = vec![1.0; 70 * 3];
            let mut x = vec![1.0; 70 * 20];
            (dy[at * 3 + 1], x[at * 20 + 5]) = (number, number);
            backward_weight(&mut dweight, &dy, &x, Sums::Write, turned, &mut workspace);
            for (index, y) in y.into_iter().chain(dweight).enumerate() {
                let is_reached = index / 20 % 3 == 1 || index % 20 == 5;
                assert_eq!(y.is_finite(), !is_reached, "{kernel:?}: {number} at {at}: {index}");
            }
        }
    }
}
