//! The plan counts exactly the memory that products take.

use device::Allocator;
use half::bf16;

use super::super::{Epilogue, Shape, Sums, backward_input, backward_weight, forward};
use super::Workspace;
use crate::ops::Element;

/// All products of a layer.
fn multiply<E: Element>(shape: Shape, workspace: &mut Workspace<E>) {
    let Shape { rows, inputs, outputs } = shape;
    let [mut x, mut y] = [inputs, outputs].map(|columns| vec![E::ZERO; rows * columns]);
    let weight = vec![E::ZERO; outputs * inputs];
    forward(&mut y, &x, &weight, (None, Epilogue::Store), shape, workspace);
    backward_input(&mut x, &y, &weight, None, shape, workspace);
    let mut dweight = vec![E::Wide::default(); outputs * inputs];
    backward_weight(&mut dweight, &y, &x, Sums::Write, shape, workspace);
}

/// Bytes of a workspace for all products of a layer, as a plan counts them.
fn planned<E: Element>(shape: Shape, threads: usize) -> usize {
    let counting = Allocator::counting();
    Workspace::<E>::for_products(&counting, threads, &shape.products());
    counting.total_bytes() as usize
}

fn takes_what_is_planned<E: Element>(shape: Shape, threads: usize) {
    let what = format!("{shape:?}, {threads} threads");
    let planned = planned::<E>(shape, threads);

    let mut grown = Workspace::<E>::new(&Allocator::host(), threads);
    multiply(shape, &mut grown);
    assert_eq!(grown.bytes(), planned, "{what}: grown");

    let host = Allocator::host();
    let products = shape.products();
    let mut made = Workspace::<E>::for_products(&host, threads, &products);
    multiply(shape, &mut made);
    assert_eq!(host.total_bytes(), planned as u64, "{what}: made for its products");
}

fn products_take_what_is_planned<E: Element>() {
    let shapes = [(1, 5, 3), (70, 129, 400), (512, 128, 384), (97, 1700, 67), (777, 67, 35)];
    for (rows, inputs, outputs) in shapes {
        let shape = Shape { rows, inputs, outputs };
        for threads in [1, 2, 3, 8] {
            takes_what_is_planned::<E>(shape, threads);
        }
    }
}

#[test]
fn products_take_the_memory_that_is_planned() {
    products_take_what_is_planned::<f32>();
    products_take_what_is_planned::<bf16>();
}

#[test]
fn buffers_are_neither_larger_than_small_products_need_nor_than_the_caches() {
    let bytes =
        |rows, inputs, threads| planned::<f32>(Shape { rows, inputs, outputs: inputs }, threads);
    assert!(bytes(64, 64, 8) < 8 * (64 << 10), "{}", bytes(64, 64, 8));
    assert!(bytes(1 << 14, 1 << 12, 2) < 3 << 20, "{}", bytes(1 << 14, 1 << 12, 2));
}
