//! Results past the caches against the same ones through them, bit for bit.

#![allow(unsafe_code)]

use half::bf16;

use super::detect::{pairs, parts};
use super::kernel::Kernel;
use super::output::{LARGE_BYTES, Narrow, Output, Then};
use super::tests::elements;
use super::{Epilogue, Shape, Sums, Workspace, backward_input, backward_weight, forward};
use crate::ops::simd::{self, LINE_BYTES};
use crate::ops::{Element, Float};

const ROWS: usize = 5;
const WIDTH: usize = 32;
const STRIDE: usize = 96;

/// A matrix that starts at a cache line, or one element behind it.
struct Matrix<T> {
    data: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy> Matrix<T> {
    fn new(values: &[T], is_aligned: bool) -> Self {
        let mut data = vec![values[0]; values.len() + LINE_BYTES];
        let start = data.as_ptr().align_offset(LINE_BYTES) + usize::from(!is_aligned);
        data[start..][..values.len()].copy_from_slice(values);
        Self { data, start, len: values.len() }
    }

    fn elements(&mut self) -> &mut [T] {
        &mut self.data[self.start..][..self.len]
    }
}

fn bits<E: Element>(matrix: &mut Matrix<E>) -> Vec<u64> {
    let elements = matrix.elements().iter();
    elements.map(|element| element.widen().to_f64().to_bits()).collect()
}

/// Both matrices of an output after a tile was finished.
fn finished<E: Element>(output: impl Fn(*mut E, *mut E) -> Output<E>, past: bool) -> Vec<u64> {
    let matrix = |seed| Matrix::new(&elements::<E>(ROWS * STRIDE, seed), true);
    let (mut first, mut second) = (matrix(1), matrix(2));
    let sums: Vec<E::Wide> = elements::<E>(ROWS * WIDTH, 3).into_iter().map(E::widen).collect();
    let output = output(first.elements().as_mut_ptr(), second.elements().as_mut_ptr());
    assert!(output.takes_whole_lines(WIDTH), "{output:?}");
    // SAFETY: all matrices have rows of WIDTH, and nobody else has them.
    unsafe { output.finish((sums.as_ptr(), WIDTH), (ROWS, WIDTH), past) };
    simd::fence();
    [bits(&mut first), bits(&mut second)].concat()
}

fn tiles_are_the_same<E: Element>() {
    let bias = elements::<E>(WIDTH, 4);
    let then: [fn(*mut E) -> Then<E>; 4] =
        [|_| Then::Store, |other| Then::Add(other), Then::GeluBackward, Then::Gelu];
    for then in then {
        let output = |start, other| {
            let bias = Some(bias.as_ptr());
            Output::Narrow(Narrow { start, row: STRIDE, bias, then: then(other) })
        };
        assert_eq!(finished(output, false), finished(output, true));
    }
    let plain = |start, _| Output::<E>::plain(start, STRIDE);
    assert_eq!(finished(plain, false), finished(plain, true));
}

#[test]
fn a_tile_is_the_same_past_the_caches() {
    tiles_are_the_same::<f32>();
    tiles_are_the_same::<bf16>();
}

/// All results of a layer, as bits.
fn layer<E: Element>(
    is_aligned: bool,
    threads: usize,
    kernel: &'static Kernel<E::Wide>,
) -> Vec<Vec<u64>> {
    let shape = Shape { rows: 1024, inputs: 800, outputs: 1024 };
    let Shape { rows, inputs, outputs } = shape;
    let (x, dy) = (elements::<E>(rows * inputs, 1), elements::<E>(rows * outputs, 2));
    let (weight, bias) = (elements::<E>(outputs * inputs, 3), elements::<E>(outputs, 4));
    let mut workspace = Workspace::<E>::with_kernel(threads, kernel);
    let matrix = |len| Matrix::new(&elements::<E>(len, 5), is_aligned);
    let [mut y, mut gelu, mut sum] = [rows * outputs; 3].map(matrix);
    let epilogue = (Some(&bias[..]), Epilogue::Gelu(gelu.elements()));
    forward(y.elements(), &x, &weight[..], epilogue, shape, &mut workspace);
    let epilogue = (None, Epilogue::Residual(&dy));
    forward(sum.elements(), &x, &weight[..], epilogue, shape, &mut workspace);
    let [mut dx, mut before] = [rows * inputs; 2].map(matrix);
    let gelu_of = Some(before.elements());
    backward_input(dx.elements(), &dy, &weight[..], gelu_of, shape, &mut workspace);
    let zeros = vec![E::Wide::ZERO; outputs * inputs];
    let mut dweight = Matrix::new(&zeros, is_aligned);
    backward_weight(dweight.elements(), &dy, &x, Sums::Write, shape, &mut workspace);
    let written = dweight.elements().to_vec();
    backward_weight(dweight.elements(), &dy, &x, Sums::Add, shape, &mut workspace);
    let wide = |sums: &[E::Wide]| sums.iter().map(|sum| sum.to_f64().to_bits()).collect();
    let [written, added] = [wide(&written), wide(dweight.elements())];
    let mut stored: Vec<Vec<u64>> = [y, gelu, sum, dx, before].iter_mut().map(bits).collect();
    stored.extend([written, added]);
    stored
}

fn layers_are_the_same<E: Element>(kernels: &'static [Kernel<E::Wide>]) {
    for (kernel, threads) in kernels.iter().flat_map(|kernel| [1, 2].map(|count| (kernel, count))) {
        let [past, through] = [true, false].map(|past| layer::<E>(past, threads, kernel));
        for (index, (past, through)) in past.iter().zip(&through).enumerate() {
            assert!(past == through, "result {index} of {kernel:?} on {threads} threads");
        }
    }
}

/// Of several blocks along k, on one thread and two: only matrices that start at a line go past.
#[test]
fn a_layer_is_the_same_past_the_caches() {
    layers_are_the_same::<f32>(parts());
    layers_are_the_same::<bf16>(pairs());
}

#[test]
fn lines_are_whole_from_their_start_to_their_end() {
    let line = std::ptr::without_provenance_mut::<f32>(640);
    let wide = |start, row, accumulate| Output::<f32>::Wide { start, row, accumulate };
    let gelu = |second, row| {
        let then = Then::Gelu(second);
        Output::Narrow(Narrow { start: line, row, bias: None, then })
    };
    assert!(wide(line, 96, false).takes_whole_lines(32) && gelu(line, 96).takes_whole_lines(32));
    assert!(!wide(line, 96, true).takes_whole_lines(32), "adds");
    assert!(!wide(line.wrapping_add(1), 96, false).takes_whole_lines(32), "begins inside one");
    assert!(!wide(line, 97, false).takes_whole_lines(32), "rows do");
    assert!(!wide(line, 96, false).takes_whole_lines(31), "ends inside one");
    assert!(!gelu(line.wrapping_add(1), 96).takes_whole_lines(32), "the second does");
    assert!(!gelu(line, 97).takes_whole_lines(32), "its rows do");
}

#[test]
fn a_part_is_large_by_its_bytes() {
    let start = std::ptr::without_provenance_mut::<bf16>(640);
    let elements = LARGE_BYTES / 2;
    assert!(Output::plain(start, 96).is_large(elements));
    assert!(!Output::plain(start, 96).is_large(elements - 1));
    let wide = Output::<bf16>::Wide { start: start.cast(), row: 96, accumulate: false };
    assert!(wide.is_large(elements / 2) && !wide.is_large(elements / 2 - 1));
}
