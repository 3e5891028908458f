//! Parts against the elements that they are of, and their cells against their places.

#![allow(unsafe_code)]

use std::arch::x86_64::__m512i;

use super::split::{LANES, PARTS, RUN, is_available, split};
use super::stepwise::Packing;
use super::strided::Strided;
use super::transpose::SIDE;
use crate::ops::testing::uniform;

/// The parts of 16 elements, as numbers.
fn parts_of(elements: [f32; LANES]) -> [[f32; LANES]; PARTS] {
    assert!(is_available());
    // SAFETY: the processor was asked; vectors have no invalid values.
    unsafe { std::mem::transmute(split(std::mem::transmute::<[f32; LANES], __m512i>(elements))) }
}

fn add_up(elements: [f32; LANES]) {
    let parts = parts_of(elements);
    for (lane, element) in elements.into_iter().enumerate() {
        let of_lane = parts.map(|part| part[lane]);
        let is_bf16 = |part: &f32| part.to_bits() & 0xffff == 0 && !part.is_subnormal();
        assert!(of_lane.iter().all(is_bf16), "{element:e}: {of_lane:?}");
        let sum: f64 = of_lane.iter().copied().map(f64::from).sum();
        assert!(sum == f64::from(element), "{element:e}: {of_lane:?}");
        assert!(of_lane[1].abs() <= of_lane[0].abs() / 255.0, "{element:e}: {of_lane:?}");
    }
}

#[test]
fn parts_are_bf16_and_add_up_to_the_element() {
    if !is_available() {
        return;
    }
    let exponents = [24_u32, 100, 126, 127, 128, 160, 220, 253];
    for mantissa in (0..1 << 23).step_by(61).chain([1, 0x7f80, 0x8000, 0xffff, 0x7f_ffff]) {
        let mut elements = [0.0; LANES];
        for (element, exponent) in elements.chunks_mut(2).zip(exponents) {
            element[0] = f32::from_bits(exponent << 23 | mantissa);
            element[1] = -element[0];
        }
        add_up(elements);
    }
}

/// An operand over `depth` elements of k and `count` others, with NaN between its rows.
struct Operand {
    depth: usize,
    count: usize,
    numbers: Vec<f32>,
    /// Whether its rows are along k, and their data.
    is_along: bool,
    data: Vec<f32>,
    row: usize,
}

impl Operand {
    fn new(depth: usize, count: usize, is_along: bool) -> Self {
        let numbers: Vec<f32> = uniform(depth * count, 1);
        let (rows, columns) = if is_along { (count, depth) } else { (depth, count) };
        let row = columns + 3;
        let mut data = vec![f32::NAN; rows * row];
        for (index, &number) in numbers.iter().enumerate() {
            let (k, other) = (index / count, index % count);
            data[if is_along { other * row + k } else { k * row + other }] = number;
        }
        Self { depth, count, numbers, is_along, data, row }
    }

    /// k by others.
    fn by_k(&self) -> Strided<f32> {
        let rows = Strided::dense(&self.data, self.row);
        if self.is_along { rows.transposed() } else { rows }
    }

    fn bits(&self, k: usize, other: usize, part: usize) -> u32 {
        let is_inside = k < self.depth && other < self.count;
        let element = if is_inside { self.numbers[k * self.count + other] } else { 0.0 };
        parts_of([element; LANES])[part][0].to_bits()
    }

    /// Asks that a room has each cell where `place` says, and nothing behind.
    fn is_in(&self, mut room: Vec<f32>, all: usize, place: impl Fn(usize, usize, usize) -> usize) {
        let what = format!("{} x {}, {}", self.depth, self.count, self.is_along);
        assert_eq!(room.pop(), Some(BESIDE), "{what}");
        for step in 0..self.depth.div_ceil(RUN) * SIDE {
            for other in 0..all {
                for part in 0..PARTS {
                    let of = |k| self.bits(k, other, part);
                    let cell = room[place(step, other, part)].to_bits();
                    assert_eq!(cell, of(2 * step) >> 16 | of(2 * step + 1), "{what}, {step}");
                }
            }
        }
    }
}

/// What lies behind a room.
const BESIDE: f32 = 7.0;

/// Depths and counts around every edge: each cell in its place, and zeros behind the operand.
#[test]
fn every_cell_has_its_place() {
    if !is_available() {
        return;
    }
    for (depth, count) in
        [1, 31, 32, 33, 70].into_iter().flat_map(|k| [1, 16, 17, 33, 81].map(|n| (k, n)))
    {
        for is_along in [false, true] {
            let operand = Operand::new(depth, count, is_along);
            let (runs, all) = (depth.div_ceil(RUN), count.next_multiple_of(SIDE));
            let row = runs * PARTS * SIDE;
            let panel = 2 * LANES;

            let mut room = vec![BESIDE; all * row + 1];
            let (by_k, extent) = (operand.by_k(), (depth, count));
            let packing = Packing::right(&mut room, by_k, extent, (count, panel));
            // SAFETY: the processor was asked; the operand and the room are so large.
            unsafe { packing.finish() };
            operand.is_in(room, all, |step, column, part| {
                let first = column / panel * panel;
                let stride = panel.min(all - first);
                let steps = (step / SIDE * PARTS + part) * SIDE + step % SIDE;
                first * row + steps * stride + column - first
            });

            let mut room = vec![BESIDE; all * row + 1];
            let by_rows = operand.by_k().transposed();
            let packing = Packing::left(&mut room, by_rows, (count, depth), row);
            // SAFETY: as above.
            unsafe { packing.finish() };
            operand.is_in(room, count, |step, of_row, part| {
                of_row * row + (step / SIDE * PARTS + part) * SIDE + step % SIDE
            });
        }
    }
}
