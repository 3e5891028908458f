//! How exact sums are, and what is not a number.

use half::bf16;

use super::detect::{pairs, parts, single, singles};
use super::kernel::Kernel;
use super::tests::{Layer, elements, stored, wide};
use super::{Epilogue, Shape, Sums, Workspace, backward_input, backward_weight, forward};
use crate::ops::testing::{relative_error, uniform};
use crate::ops::{Element, Float};

/// How far sums over a long k are off, of elements over so many powers of two.
fn error_over(kernel: &'static Kernel<f32>, powers: f32) -> f64 {
    let elements = |len, seed| -> Vec<f32> {
        let scales: Vec<f32> = uniform(len, seed + 1);
        let numbers = uniform::<f32>(len, seed).into_iter().zip(scales);
        numbers.map(|(number, scale)| number * (powers / 2.0 * scale).exp2()).collect()
    };
    let shape = Shape { rows: 40, inputs: 3000, outputs: 70 };
    let (x, weight) = (elements(40 * 3000, 1), elements(70 * 3000, 3));
    let layer = Layer { shape, x, weight, dy: Vec::new() };
    let (mut y, plain) = (stored::<f32>(40 * 70), (None, Epilogue::Store));
    let mut workspace = Workspace::with_kernel(1, kernel);
    forward(&mut y, &layer.x, &layer.weight, plain, shape, &mut workspace);
    relative_error(&wide(&y), &layer.y())
}

/// Where a few products make up a sum, each is rounded with its parts, so more than once.
#[test]
fn parts_are_as_exact_as_f32() {
    for (powers, times) in [(0.0, 1.0), (12.0, 1.0), (40.0, 2.0)] {
        let plain = error_over(single(), powers);
        for kernel in parts() {
            let error = error_over(kernel, powers);
            assert!(error < times * plain, "{kernel:?}: {error:e}, f32 itself: {plain:e}");
        }
    }
}

/// Odd lengths, with NaN behind every operand: a cell must not reach across an edge.
fn nothing_beside<E: Element>(kernel: &'static Kernel<E::Wide>) {
    let shape = Shape { rows: 7, inputs: 17, outputs: 65 };
    let nan = E::narrow(E::Wide::from_f64(f64::NAN));
    let mut workspace = Workspace::<E>::with_kernel(1, kernel);
    let with_nan = |mut data: Vec<E>| {
        data.resize(data.len() + 64, nan);
        data
    };
    let (x, weight) = (with_nan(elements(7 * 17, 1)), with_nan(elements(65 * 17, 2)));
    let (mut y, mut dx) = (vec![E::ZERO; 7 * 65], vec![E::ZERO; 7 * 17]);
    let (x, weight) = (&x[..7 * 17], &weight[..65 * 17]);
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
fn nothing_beside_the_operands_has_an_influence() {
    pairs().iter().chain(singles()).for_each(nothing_beside::<bf16>);
    parts().iter().chain(singles()).for_each(nothing_beside::<f32>);
}

/// Each of them, wherever it is in a cell and in a run of cells, in both kinds of operands.
#[test]
fn what_is_not_finite_is_not_lost() {
    const NOT_A_NUMBER: [u32; 3] = [0x7fc0_0000, 0x7f80_0001, u32::MAX];
    let numbers = NOT_A_NUMBER.map(f32::from_bits).into_iter();
    let numbers = numbers.chain([f32::INFINITY, f32::NEG_INFINITY]);
    let shape = Shape { rows: 3, inputs: 70, outputs: 20 };
    let turned = Shape { rows: 70, inputs: 20, outputs: 3 };
    for (kernel, number) in numbers
        .flat_map(|number| parts().iter().chain(singles()).map(move |kernel| (kernel, number)))
    {
        let mut workspace = Workspace::with_kernel(1, kernel);
        for place in 0..70 {
            // One of the left operand's rows and one of the right one's columns, k along rows of
            // memory, then across.
            let (mut x, mut weight) = (vec![1.0; 3 * 70], vec![1.0; 20 * 70]);
            (x[70 + place], weight[5 * 70 + place]) = (number, number);
            let (mut y, mut dweight) = (vec![0.0; 3 * 20], vec![0.0; 3 * 20]);
            forward(&mut y, &x, &weight, (None, Epilogue::Store), shape, &mut workspace);
            let (mut dy, mut x) = (vec![1.0; 70 * 3], vec![1.0; 70 * 20]);
            (dy[place * 3 + 1], x[place * 20 + 5]) = (number, number);
            backward_weight(&mut dweight, &dy, &x, Sums::Write, turned, &mut workspace);
            for (index, y) in y.into_iter().chain(dweight).enumerate() {
                let is_reached = index / 20 % 3 == 1 || index % 20 == 5;
                assert_eq!(y.is_finite(), !is_reached, "{kernel:?}: {number} at {place}: {index}");
            }
        }
    }
}
