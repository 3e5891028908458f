//! The device, its memory, and the comparison of results.

use device::cuda::Cuda;
use device::{Allocator, DeviceBuffer};

use crate::ops::kernels::{CudaElement, Format};
use crate::ops::testing::{narrowed, uniform};
use crate::ops::{Element, Float};

pub(super) fn cuda() -> Cuda {
    Cuda::open(0).unwrap_or_else(|error| panic!("{error}"))
}

/// A device with inputs and outputs of kernels.
#[derive(Debug)]
pub(super) struct Memory {
    device: Cuda,
    allocator: Allocator,
}

impl Memory {
    pub(super) fn new() -> Self {
        let device = cuda();
        Self { allocator: Allocator::cuda(&device), device }
    }

    pub(super) fn device(&self) -> &Cuda {
        &self.device
    }

    pub(super) fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    pub(super) fn upload<E: device::Element>(&self, elements: &[E]) -> DeviceBuffer<E> {
        let mut buffer = self.allocator.zeros(elements.len());
        self.device.write(buffer.view_mut(), elements).unwrap();
        buffer
    }

    /// An output: all of it is not a number until a kernel writes it.
    pub(super) fn unwritten<E: device::Element>(&self, len: usize) -> DeviceBuffer<E> {
        let mut buffer = self.allocator.zeros(len);
        self.device.fill(buffer.view_mut(), 0xff).unwrap();
        buffer
    }

    /// Operand that a kernel adds to, or an output that it writes.
    pub(super) fn before<E: device::Element>(
        &self,
        elements: &[E],
        accumulate: bool,
    ) -> DeviceBuffer<E> {
        if accumulate { self.upload(elements) } else { self.unwritten(elements.len()) }
    }

    pub(super) fn download<E: device::Element>(&self, buffer: &DeviceBuffer<E>) -> Vec<E> {
        let mut elements = vec![E::default(); buffer.len()];
        self.device.read(buffer.view(), &mut elements).unwrap();
        elements
    }
}

/// Elements of a format, and the same numbers in f64.
#[derive(Debug)]
pub(super) struct Numbers<E> {
    pub(super) elements: Vec<E>,
    pub(super) exact: Vec<f64>,
}

impl<E: Element> Numbers<E> {
    /// Uniform in [-magnitude, magnitude).
    pub(super) fn uniform(len: usize, seed: u64, magnitude: f64) -> Self {
        let values: Vec<f64> = uniform(len, seed);
        Self::rounded(&values.iter().map(|value| magnitude * value).collect::<Vec<_>>())
    }

    pub(super) fn rounded(values: &[f64]) -> Self {
        let elements: Vec<E> = narrowed(values);
        let exact = elements.iter().map(|element| element.widen().to_f64()).collect();
        Self { elements, exact }
    }
}

/// The largest errors that the rounding of a format explains.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) f32: f64,
    pub(super) bf16: f64,
}

impl Bound {
    /// Bound of results that are computed in f32 and rounded once, to the nearest element.
    pub(super) const fn rounded_once(f32: f64) -> Self {
        Self { f32, bf16: f32 + 1.0 / 256.0 }
    }

    /// Bound of results in f32, regardless of the rounding of inputs.
    pub(super) const fn wide(f32: f64) -> Self {
        Self { f32, bf16: f32 }
    }

    fn of<E: CudaElement>(self) -> f64 {
        if E::FORMAT == Format::Bf16 { self.bf16 } else { self.f32 }
    }

    /// Asserts that each element of a result in the format of the kernels is within the bound.
    pub(super) fn check<E: CudaElement>(self, what: &str, found: &[E], exact: &[f64]) {
        let found: Vec<f64> = found.iter().map(|element| f64::from(element.widen())).collect();
        assert_close(what, &found, exact, self.of::<E>());
    }

    /// Asserts that each element of a result in f32 is within the bound of the kernels' format.
    pub(super) fn check_wide<E: CudaElement>(self, what: &str, found: &[f32], exact: &[f64]) {
        let found: Vec<f64> = found.iter().map(|&value| value.into()).collect();
        assert_close(what, &found, exact, self.of::<E>());
    }
}

/// Asserts that no element's error exceeds `bound` times its size plus the root mean square of all.
pub(super) fn assert_close(what: &str, found: &[f64], exact: &[f64], bound: f64) {
    assert_eq!(found.len(), exact.len(), "{what}");
    let squares: f64 = exact.iter().map(|value| value * value).sum();
    let typical = (squares / exact.len() as f64).sqrt();
    for (index, (found, exact)) in found.iter().zip(exact).enumerate() {
        let error = (found - exact).abs() / (exact.abs() + typical);
        // A NaN is not within the bound.
        let is_within = error <= bound || found == exact;
        assert!(is_within, "{what}: element {index} is {found}, not {exact}: error {error:.1e}");
    }
}
