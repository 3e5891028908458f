//! Rows in parallel for everything per row; columns in parallel for the sum over rows.

use rayon::prelude::*;

use crate::ops::{COLUMN_CHUNK, Element, Float, ROW_CHUNK, simd};

/// Writes `y` (N, C) and, per row, 1 / root mean square to `inverses` (N).
///
/// # Panics
/// When lengths do not fit together.
pub fn forward<E: Element>(
    y: &mut [E],
    inverses: &mut [E::Wide],
    x: &[E],
    weight: &[E],
    epsilon: f64,
) {
    let width = check(y, inverses, x, weight);
    let inputs = x.par_chunks(ROW_CHUNK * width);
    let outputs = y.par_chunks_mut(ROW_CHUNK * width).zip(inverses.par_chunks_mut(ROW_CHUNK));
    outputs.zip(inputs).for_each(|((y, inverses), x)| {
        simd::vectorize(
            #[inline(always)]
            || {
                let rows = y.chunks_exact_mut(width).zip(x.chunks_exact(width));
                for ((y, x), inverse) in rows.zip(inverses) {
                    let count = E::Wide::from_f64(width as f64);
                    let mean_square = simd::dot(x, x) / count;
                    *inverse = E::Wide::ONE / (mean_square + E::Wide::from_f64(epsilon)).sqrt();
                    normalise(y, x, *inverse, weight);
                }
            },
        );
    });
}

/// Writes `y` (N, C) again from `x` and the `inverses` of [`forward`].
///
/// # Panics
/// When lengths do not fit together.
pub fn apply<E: Element>(y: &mut [E], inverses: &[E::Wide], x: &[E], weight: &[E]) {
    let width = check(y, inverses, x, weight);
    let inputs = x.par_chunks(ROW_CHUNK * width).zip(inverses.par_chunks(ROW_CHUNK));
    y.par_chunks_mut(ROW_CHUNK * width).zip(inputs).for_each(|(y, (x, inverses))| {
        simd::vectorize(
            #[inline(always)]
            || {
                let rows = y.chunks_exact_mut(width).zip(x.chunks_exact(width));
                for ((y, x), &inverse) in rows.zip(inverses) {
                    normalise(y, x, inverse, weight);
                }
            },
        );
    });
}

#[inline(always)]
fn normalise<E: Element>(y: &mut [E], x: &[E], inverse: E::Wide, weight: &[E]) {
    for ((y, &x), &weight) in y.iter_mut().zip(x).zip(weight) {
        *y = E::narrow(x.widen() * inverse * weight.widen());
    }
}

/// Adds to `dx` (N, C) and `dweight` (C) from `dy` (N, C) and what forward saw.
///
/// # Panics
/// When lengths do not fit together.
pub fn backward<E: Element>(
    dx: &mut [E],
    dweight: &mut [E::Wide],
    dy: &[E],
    inverses: &[E::Wide],
    x: &[E],
    weight: &[E],
) {
    let width = check(dx, inverses, x, weight);
    assert_eq!(dy.len(), x.len(), "dy (N, C)");
    assert_eq!(dweight.len(), width, "dw (C)");
    sum_rows(dweight, dy, inverses, x);
    let inputs = x.par_chunks(ROW_CHUNK * width).zip(inverses.par_chunks(ROW_CHUNK));
    let rows = dx.par_chunks_mut(ROW_CHUNK * width).zip(dy.par_chunks(ROW_CHUNK * width));
    rows.zip(inputs).for_each(|((dx, dy), (x, inverses))| {
        simd::vectorize(
            #[inline(always)]
            || {
                let rows = dx.chunks_exact_mut(width).zip(dy.chunks_exact(width));
                for (((dx, dy), x), &inverse) in rows.zip(x.chunks_exact(width)).zip(inverses) {
                    row(dx, dy, x, inverse, weight);
                }
            },
        );
    });
}

/// One row of dx.
#[inline(always)]
fn row<E: Element>(dx: &mut [E], dy: &[E], x: &[E], inverse: E::Wide, weight: &[E]) {
    let count = E::Wide::from_f64(x.len() as f64);
    let mean_gx = simd::sum_of_three(dy, weight, x, |dy, w, x| dy * w * x) / count;
    let slope = inverse * inverse * mean_gx;
    for ((dx, &dy), (&x, &weight)) in dx.iter_mut().zip(dy).zip(x.iter().zip(weight)) {
        let g = dy.widen() * weight.widen();
        *dx = E::narrow(dx.widen() + inverse * (g - x.widen() * slope));
    }
}

/// The weight's gradient: each column by one task in the order of the rows.
fn sum_rows<E: Element>(dweight: &mut [E::Wide], dy: &[E], inverses: &[E::Wide], x: &[E]) {
    let width = dweight.len();
    dweight.par_chunks_mut(COLUMN_CHUNK).enumerate().for_each(|(chunk, dweight)| {
        simd::vectorize(
            #[inline(always)]
            || {
                let columns = chunk * COLUMN_CHUNK..chunk * COLUMN_CHUNK + dweight.len();
                let mut sums = [E::Wide::ZERO; COLUMN_CHUNK];
                let rows = dy.chunks_exact(width).zip(x.chunks_exact(width));
                for ((dy, x), &inverse) in rows.zip(inverses) {
                    let (dy, x) = (&dy[columns.clone()], &x[columns.clone()]);
                    for (sum, (&dy, &x)) in sums.iter_mut().zip(dy.iter().zip(x)) {
                        *sum += dy.widen() * x.widen() * inverse;
                    }
                }
                for (total, &sum) in dweight.iter_mut().zip(&sums) {
                    *total += sum;
                }
            },
        );
    });
}

fn check<E: Element>(y: &[E], inverses: &[E::Wide], x: &[E], weight: &[E]) -> usize {
    assert_eq!(x.len(), inverses.len() * weight.len(), "x (N, C), 1 / root mean square (N)");
    assert_eq!(y.len(), x.len(), "y (N, C)");
    weight.len()
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::{apply, backward, forward};
    use crate::ops::Element;
    use crate::ops::testing::{
        check_gradient, inner, narrowed, on_threads, relative_error, uniform, widened,
    };

    const ROWS: usize = 19;
    const WIDTH: usize = 70;
    const EPSILON: f64 = 1e-3;

    /// y, 1 / root mean square, dx and dw, starting from 0.
    type All<E> = (Vec<E>, Vec<<E as Element>::Wide>, Vec<E>, Vec<<E as Element>::Wide>);

    fn run<E: Element>(x: &[E], weight: &[E], dy: &[E]) -> All<E> {
        let mut inverses = vec![E::Wide::ZERO; ROWS];
        let (mut y, mut dx) = (vec![E::ZERO; x.len()], vec![E::ZERO; x.len()]);
        let mut dweight = vec![E::Wide::ZERO; WIDTH];
        forward(&mut y, &mut inverses, x, weight, EPSILON);
        backward(&mut dx, &mut dweight, dy, &inverses, x, weight);
        (y, inverses, dx, dweight)
    }

    fn inputs() -> [Vec<f64>; 3] {
        [uniform(ROWS * WIDTH, 1), uniform(WIDTH, 2), uniform(ROWS * WIDTH, 3)]
    }

    #[test]
    fn rows_are_divided_by_their_root_mean_square() {
        let [x, weight, dy] = inputs();
        let (y, inverses, ..) = run(&x, &weight, &dy);
        for ((x, y), inverse) in x.chunks(WIDTH).zip(y.chunks(WIDTH)).zip(&inverses) {
            let mean = x.iter().map(|x| x * x).sum::<f64>() / WIDTH as f64;
            assert!((inverse - 1.0 / (mean + EPSILON).sqrt()).abs() < 1e-14);
            let exact = x.iter().zip(&weight).map(|(x, w)| x * inverse * w);
            assert!(y.iter().zip(exact).all(|(y, exact)| (y - exact).abs() < 1e-14));
        }
        let mut again = vec![0.0; x.len()];
        apply(&mut again, &inverses, &x, &weight);
        assert_eq!(again, y);
    }

    #[test]
    fn backward_agrees_with_finite_differences() {
        let [x, weight, dy] = inputs();
        let (_, inverses, ..) = run(&x, &weight, &dy);
        // Gradients are added to what is there.
        let (mut dx, mut dweight) = (vec![0.5; x.len()], vec![0.25; WIDTH]);
        backward(&mut dx, &mut dweight, &dy, &inverses, &x, &weight);
        dx.iter_mut().for_each(|d| *d -= 0.5);
        dweight.iter_mut().for_each(|d| *d -= 0.25);
        check_gradient("x", &x, &dx, |x| inner(&run(x, &weight, &dy).0, &dy));
        check_gradient("weight", &weight, &dweight, |w| inner(&run(&x, w, &dy).0, &dy));
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let [x, weight, dy] = inputs().map(|values| narrowed::<f32>(&values));
        let alone = on_threads(1, || run(&x, &weight, &dy));
        assert_eq!(on_threads(3, || run(&x, &weight, &dy)), alone);
    }

    /// One rounding to bf16 of each element, 2^-9 of it at most; sums and what is kept are f32.
    #[test]
    fn bf16_rounds_once() {
        let [x, weight, dy] = inputs().map(|values| narrowed::<bf16>(&values));
        let (y, inverses, dx, dweight) = run(&x, &weight, &dy);
        let exact = run(&widened(&x), &widened(&weight), &widened(&dy));
        for (name, error, bound) in [
            ("y", relative_error(&widened(&y), &exact.0), 1.0 / 512.0),
            ("1 / root mean square", relative_error(&inverses, &exact.1), 1e-6),
            ("dx", relative_error(&widened(&dx), &exact.2), 1.0 / 512.0),
            ("dw", relative_error(&dweight, &exact.3), 1e-6),
        ] {
            assert!(error < bound, "{name}: relative error {error:e}");
        }
    }
}
