//! One exponential per element of the gate.

use rayon::prelude::*;

use crate::ops::simd::{self, LANES};
use crate::ops::{Element, Float, ROW_CHUNK};

/// s = 1 / (1 + e^-g).
#[inline(always)]
fn sigmoid<W: Float>(gate: W) -> W {
    W::ONE / (W::ONE + (-gate).exp())
}

/// Writes `hidden` (N, F) from `gate_up` (N, 2 F).
///
/// In f32 the error is at most 1e-6 |hidden| + 1e-35 |up| for gates above -1600. Below -88 the
/// sigmoid stays at 6e-39, so for gates below -1600 the error is at most 1e-38 |gate up|.
///
/// # Panics
/// Panics if lengths do not fit together.
pub fn forward<E: Element>(hidden: &mut [E], gate_up: &[E], width: usize) {
    check(hidden, gate_up, width);
    let inputs = gate_up.par_chunks(ROW_CHUNK * 2 * width);
    hidden.par_chunks_mut(ROW_CHUNK * width).zip(inputs).for_each(|(hidden, gate_up)| {
        simd::vectorize(
            #[inline(always)]
            || {
                let rows = hidden.chunks_exact_mut(width).zip(gate_up.chunks_exact(2 * width));
                for (hidden, gate_up) in rows {
                    let (gate, up) = gate_up.split_at(width);
                    for ((hidden, &gate), &up) in hidden.iter_mut().zip(gate).zip(up) {
                        let gate = gate.widen();
                        let up = up.widen();
                        *hidden = E::narrow(gate * sigmoid(gate) * up);
                    }
                }
            },
        );
    });
}

/// Backward's first half: recomputes `hidden` (N, F), and replaces gate and up by dhidden/dgate and
/// dhidden/dup.
///
/// Keeping only the input and computing all three from one exponential saves the memory of
/// `hidden`. In f32 `hidden` and dhidden/dup = silu(gate) have the errors of [`forward`], and for
/// |gate| < 100 the error of dhidden/dgate is at most 2e-6 |up|.
///
/// # Panics
/// Panics if lengths do not fit together.
pub fn recompute<E: Element>(hidden: &mut [E], gate_up: &mut [E], width: usize) {
    check(hidden, gate_up, width);
    let inputs = gate_up.par_chunks_mut(ROW_CHUNK * 2 * width);
    hidden.par_chunks_mut(ROW_CHUNK * width).zip(inputs).for_each(|(hidden, gate_up)| {
        simd::vectorize(
            #[inline(always)]
            || {
                let rows = hidden.chunks_exact_mut(width).zip(gate_up.chunks_exact_mut(2 * width));
                for (hidden, gate_up) in rows {
                    let (gates, ups) = gate_up.split_at_mut(width);
                    let (whole, rest) = hidden.as_chunks_mut::<LANES>();
                    let (whole_gates, rest_gates) = gates.as_chunks_mut::<LANES>();
                    let (whole_ups, rest_ups) = ups.as_chunks_mut::<LANES>();
                    for ((hidden, gates), ups) in whole.iter_mut().zip(whole_gates).zip(whole_ups) {
                        simd::prefetch_ahead(hidden);
                        simd::prefetch_ahead(gates);
                        simd::prefetch_ahead(ups);
                        [*hidden, *gates, *ups] = differentiate(*gates, *ups);
                    }
                    for ((hidden, gate), up) in rest.iter_mut().zip(rest_gates).zip(rest_ups) {
                        [[*hidden], [*gate], [*up]] = differentiate([*gate], [*up]);
                    }
                }
            },
        );
    });
}

/// hidden, dhidden/dgate and dhidden/dup of a few gates and ups, as values: the compiler does not
/// know that the rows do not overlap.
#[inline(always)]
fn differentiate<E: Element, const N: usize>(gates: [E; N], ups: [E; N]) -> [[E; N]; 3] {
    let [mut hidden, mut by_gate, mut by_up] = [[E::ZERO; N]; 3];
    for lane in 0..N {
        let gate = gates[lane].widen();
        let up = ups[lane].widen();
        let s = sigmoid(gate);
        hidden[lane] = E::narrow(gate * s * up);
        by_gate[lane] = E::narrow(up * (s * (E::Wide::ONE + gate * (E::Wide::ONE - s))));
        by_up[lane] = E::narrow(gate * s);
    }
    [hidden, by_gate, by_up]
}

/// Backward's second half: multiplies the `derivatives` (N, 2 F) that [`recompute`] wrote by
/// `dhidden` (N, F), which makes them the gradient of `gate_up`.
///
/// # Panics
/// Panics if lengths do not fit together.
pub fn backward<E: Element>(derivatives: &mut [E], dhidden: &[E], width: usize) {
    check(dhidden, derivatives, width);
    let factors = dhidden.par_chunks(ROW_CHUNK * width);
    derivatives.par_chunks_mut(ROW_CHUNK * 2 * width).zip(factors).for_each(|(rows, dhidden)| {
        simd::vectorize(
            #[inline(always)]
            || {
                for (row, dhidden) in rows.chunks_exact_mut(2 * width).zip(dhidden.chunks(width)) {
                    for half in row.chunks_exact_mut(width) {
                        for (derivative, &dhidden) in half.iter_mut().zip(dhidden) {
                            *derivative = E::narrow(derivative.widen() * dhidden.widen());
                        }
                    }
                }
            },
        );
    });
}

fn check<E: Element>(hidden: &[E], gate_up: &[E], width: usize) {
    assert!(hidden.len().is_multiple_of(width), "hidden (N, {width})");
    assert_eq!(gate_up.len(), 2 * hidden.len(), "gate and up (N, 2 F)");
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::{backward, forward, recompute};
    use crate::ops::Element;
    use crate::ops::testing::{
        check_gradient, inner, narrowed, on_threads, relative_error, uniform, widened,
    };

    const ROWS: usize = 35;
    const WIDTH: usize = 37;

    fn silu(gate: f64) -> f64 {
        gate / (1.0 + (-gate).exp())
    }

    /// Gates of -6 to 6, ups and the gradient of hidden.
    fn inputs() -> (Vec<f64>, Vec<f64>) {
        let scaled = |value: &f64| 6.0 * value;
        (uniform(ROWS * 2 * WIDTH, 1).iter().map(scaled).collect(), uniform(ROWS * WIDTH, 2))
    }

    /// hidden, hidden recomputed, and the gradient of gate and up.
    fn run<E: Element>(gate_up: &[E], dhidden: &[E]) -> [Vec<E>; 3] {
        let [mut hidden, mut recomputed] = [(); 2].map(|()| vec![E::ZERO; ROWS * WIDTH]);
        let mut gradient = gate_up.to_vec();
        forward(&mut hidden, gate_up, WIDTH);
        recompute(&mut recomputed, &mut gradient, WIDTH);
        backward(&mut gradient, dhidden, WIDTH);
        [hidden, recomputed, gradient]
    }

    /// d silu / d gate.
    fn slope(gate: f64) -> f64 {
        let s = 1.0 / (1.0 + (-gate).exp());
        s * (1.0 + gate * (1.0 - s))
    }

    /// Stated error of silu(gate).
    fn stated_error(gate: f64) -> f64 {
        let floor = if gate > -1600.0 { 1e-35 } else { 1e-38 * gate.abs() };
        1e-6 * silu(gate).abs() + floor
    }

    #[test]
    fn keeps_its_stated_errors() {
        const UP: f32 = 3.0;
        let steps = (-999_999..1_000_000).map(|step| step as f32 * 1e-4);
        let far = (-32_000..32_000).map(|step| step as f32 * 0.1);
        let gates: Vec<f32> = steps.chain(far).chain([-1e6, -1e20, -1e38, 1e6, 1e20]).collect();
        let mut gate_up: Vec<f32> = gates.iter().flat_map(|&gate| [gate, UP]).collect();
        let [mut hidden, mut recomputed] = [(); 2].map(|()| vec![0.0; gates.len()]);
        forward(&mut hidden, &gate_up, 1);
        recompute(&mut recomputed, &mut gate_up, 1);
        let found = hidden.iter().zip(&recomputed).zip(gate_up.as_chunks::<2>().0);
        for (&gate, ((&hidden, &recomputed), &[dgate, dup])) in gates.iter().zip(found) {
            let gate = f64::from(gate);
            let up = f64::from(UP);
            for silu_up in [hidden, recomputed, UP * dup] {
                let error = (f64::from(silu_up) - up * silu(gate)).abs();
                assert!(error <= up * stated_error(gate), "silu({gate:e}) {UP} = {silu_up:e}");
            }
            let error = (f64::from(dgate) - up * slope(gate)).abs();
            assert!(gate.abs() >= 100.0 || error <= 2e-6 * up, "silu'({gate}) {UP} = {dgate}");
        }
    }

    #[test]
    fn backward_agrees_with_finite_differences() {
        let (gate_up, dhidden) = inputs();
        let [hidden, recomputed, gradient] = run(&gate_up, &dhidden);
        assert_eq!(hidden, recomputed);
        for (row, (found, inputs)) in
            hidden.chunks(WIDTH).zip(gate_up.chunks(2 * WIDTH)).enumerate()
        {
            for (column, found) in found.iter().enumerate() {
                let exact = silu(inputs[column]) * inputs[WIDTH + column];
                assert!((found - exact).abs() < 1e-13, "row {row}, column {column}");
            }
        }
        check_gradient("gate and up", &gate_up, &gradient, |gate_up| {
            let mut hidden = vec![0.0; ROWS * WIDTH];
            forward(&mut hidden, gate_up, WIDTH);
            inner(&hidden, &dhidden)
        });
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let (gate_up, dhidden) = inputs();
        let gate_up = narrowed::<f32>(&gate_up);
        let dhidden = narrowed::<f32>(&dhidden);
        let alone = on_threads(1, || run(&gate_up, &dhidden));
        assert_eq!(on_threads(3, || run(&gate_up, &dhidden)), alone);
    }

    /// One rounding to bf16 forward, two backward, 2^-9 of an element each at most.
    #[test]
    fn bf16_rounds_once_and_twice() {
        let (gate_up, dhidden) = inputs();
        let gate_up = narrowed::<bf16>(&gate_up);
        let dhidden = narrowed::<bf16>(&dhidden);
        let found = run(&gate_up, &dhidden);
        let exact = run(&widened(&gate_up), &widened(&dhidden));
        for (bound, (found, exact)) in [1.0, 1.0, 2.0].into_iter().zip(found.iter().zip(&exact)) {
            let error = relative_error(&widened(found), exact);
            assert!(error < bound / 512.0, "relative error {error:e}");
        }
    }
}
