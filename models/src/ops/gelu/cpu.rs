//! One exponential per element.

use rayon::prelude::*;

use crate::ops::simd::{self, RUN};
use crate::ops::{ELEMENT_CHUNK, Element, Float};

/// 2 sqrt(2 / pi).
const SLOPE: f64 = 1.595_769_121_605_730_8;
const CUBIC: f64 = 0.044715;

/// s = 1 / (1 + e^(-2u)).
#[inline(always)]
pub(in crate::ops) fn gate<T: Float>(x: T) -> T {
    let minus_twice_u = x * (x * x).mul_add(T::from_f64(-SLOPE * CUBIC), T::from_f64(-SLOPE));
    T::ONE / (T::ONE + minus_twice_u.exp())
}

/// dy/dx where the gate is s and y = x s.
#[inline(always)]
fn derivative<T: Float>(x: T, s: T, y: T) -> T {
    let slope = (x * x).mul_add(T::from_f64(3.0 * SLOPE * CUBIC), T::from_f64(SLOPE));
    y.mul_add(-s, y).mul_add(slope, s)
}

/// For backward: writes y = gelu(x) again, and puts dy/dx in the place of x.
///
/// Keeping x alone and computing both from one exponential saves the memory of y. In f32 and for
/// |x| < 100 the error of y is at most 1e-6 |y| + 1e-8, that of dy/dx at most 3e-6; from x^2 beyond
/// f32 on (|x| of 1.8e19 and more) dy/dx is not a number.
///
/// # Panics
/// When the lengths differ.
pub fn recompute<E: Element>(y: &mut [E], x: &mut [E]) {
    assert_eq!(y.len(), x.len(), "y and x of one length");
    y.par_chunks_mut(ELEMENT_CHUNK).zip(x.par_chunks_mut(ELEMENT_CHUNK)).for_each(|(y, x)| {
        simd::vectorize(
            #[inline(always)]
            || {
                let (y_runs, y_rest) = y.as_chunks_mut::<RUN>();
                let (x_runs, x_rest) = x.as_chunks_mut::<RUN>();
                for (y, x) in y_runs.iter_mut().zip(x_runs) {
                    simd::prefetch_ahead(y);
                    simd::prefetch_ahead(x);
                    run(y, x);
                }
                for (y, x) in y_rest.iter_mut().zip(x_rest) {
                    run(std::array::from_mut(y), std::array::from_mut(x));
                }
            },
        );
    });
}

/// Some elements as values: the compiler does not know that x and y lie apart.
#[inline(always)]
fn run<E: Element, const N: usize>(y: &mut [E; N], place: &mut [E; N]) {
    let (mut values, mut slopes) = ([E::ZERO; N], [E::ZERO; N]);
    for lane in 0..N {
        let x = place[lane].widen();
        let s = gate(x);
        values[lane] = E::narrow(x * s);
        slopes[lane] = E::narrow(derivative(x, s, x * s));
    }
    (*y, *place) = (values, slopes);
}

#[cfg(test)]
mod tests {
    use super::recompute;
    use crate::ops::testing::{relative_error, uniform};

    const SLOPE_OF_U: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;

    /// tanh u.
    fn hyperbolic(x: f64) -> f64 {
        (SLOPE_OF_U * (x + 0.044715 * x * x * x)).tanh()
    }

    fn exact(x: f64) -> f64 {
        0.5 * x * (1.0 + hyperbolic(x))
    }

    fn exact_slope(x: f64) -> f64 {
        let (t, slope_of_u) = (hyperbolic(x), SLOPE_OF_U * (1.0 + 3.0 * 0.044715 * x * x));
        0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope_of_u
    }

    #[test]
    fn keeps_its_stated_errors() {
        let inputs: Vec<f32> = (-999_999..1_000_000).map(|step| step as f32 * 1e-4).collect();
        let (mut y, mut slopes) = (vec![0.0; inputs.len()], inputs.clone());
        recompute(&mut y, &mut slopes);
        for (&x, (&y, &slope)) in inputs.iter().zip(y.iter().zip(&slopes)) {
            let (exact, exact_slope) = (exact(f64::from(x)), exact_slope(f64::from(x)));
            let error = (f64::from(y) - exact).abs();
            assert!(error <= 1e-6 * exact.abs() + 1e-8, "gelu({x}) = {y}, not {exact}");
            let error = (f64::from(slope) - exact_slope).abs();
            assert!(error <= 3e-6, "gelu'({x}) = {slope}, not {exact_slope}");
        }
    }

    #[test]
    fn derivative_agrees_with_finite_differences() {
        let x: Vec<f64> = uniform(1001, 5).iter().map(|v: &f64| v * 6.0).collect();
        let (mut y, mut slope) = (vec![0.0; x.len()], x.clone());
        recompute(&mut y, &mut slope);
        let plain: Vec<f64> = x.iter().map(|&x| exact(x)).collect();
        assert!(relative_error(&y, &plain) < 1e-14);
        let step = 1e-5;
        let differences: Vec<f64> =
            x.iter().map(|&x| (exact(x + step) - exact(x - step)) / (2.0 * step)).collect();
        assert!(relative_error(&slope, &differences) < 1e-9);
        let plain: Vec<f64> = x.iter().map(|&x| exact_slope(x)).collect();
        assert!(relative_error(&slope, &plain) < 1e-14);
    }
}
