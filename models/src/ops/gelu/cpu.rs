//! One exponential per element.

use crate::ops::Float;

/// 2 sqrt(2 / pi).
const SLOPE: f64 = 1.595_769_121_605_730_8;
const CUBIC: f64 = 0.044715;

/// s = 1 / (1 + e^(-2u)).
#[inline(always)]
pub(in crate::ops) fn gate<T: Float>(x: T) -> T {
    let minus_twice_u = x * (x * x).mul_add(T::from_f64(-SLOPE * CUBIC), T::from_f64(-SLOPE));
    T::ONE / (T::ONE + minus_twice_u.exp())
}

/// y and dy/dx from one exponential. In f32 and for |x| < 100 the error of y is at most
/// 1e-6 |y| + 1e-8, that of dy/dx at most 3e-6; from x^2 beyond f32 on (|x| of 1.8e19 and more)
/// dy/dx is not a number.
#[inline(always)]
pub(in crate::ops) fn with_slope<T: Float>(x: T) -> (T, T) {
    let s = gate(x);
    let y = x * s;
    let slope = (x * x).mul_add(T::from_f64(3.0 * SLOPE * CUBIC), T::from_f64(SLOPE));
    (y, y.mul_add(-s, y).mul_add(slope, s))
}

#[cfg(test)]
mod tests {
    use super::with_slope;
    use crate::ops::testing::{relative_error, uniform};
    use crate::ops::{Float, simd};

    const SLOPE_OF_U: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;

    /// y and dy/dx of each.
    fn all<T: Float>(x: &[T]) -> (Vec<T>, Vec<T>) {
        let mut values = vec![T::ZERO; x.len()];
        let mut slopes = vec![T::ZERO; x.len()];
        simd::vectorize(
            #[inline(always)]
            || {
                for ((y, slope), &x) in values.iter_mut().zip(&mut slopes).zip(x) {
                    (*y, *slope) = with_slope(x);
                }
            },
        );
        (values, slopes)
    }

    /// tanh u.
    fn hyperbolic(x: f64) -> f64 {
        (SLOPE_OF_U * (x + 0.044715 * x * x * x)).tanh()
    }

    fn exact(x: f64) -> f64 {
        0.5 * x * (1.0 + hyperbolic(x))
    }

    fn exact_slope(x: f64) -> f64 {
        let t = hyperbolic(x);
        let slope_of_u = SLOPE_OF_U * (1.0 + 3.0 * 0.044715 * x * x);
        0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope_of_u
    }

    #[test]
    fn keeps_its_stated_errors() {
        let inputs: Vec<f32> = (-999_999..1_000_000).map(|step| step as f32 * 1e-4).collect();
        let (y, slopes) = all(&inputs);
        for (&x, (&y, &slope)) in inputs.iter().zip(y.iter().zip(&slopes)) {
            let exact = exact(f64::from(x));
            let exact_slope = exact_slope(f64::from(x));
            let error = (f64::from(y) - exact).abs();
            assert!(error <= 1e-6 * exact.abs() + 1e-8, "gelu({x}) = {y}, not {exact}");
            let error = (f64::from(slope) - exact_slope).abs();
            assert!(error <= 3e-6, "gelu'({x}) = {slope}, not {exact_slope}");
        }
    }

    #[test]
    fn derivative_agrees_with_finite_differences() {
        let x: Vec<f64> = uniform(1001, 5).iter().map(|v: &f64| v * 6.0).collect();
        let (y, slope) = all(&x);
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
