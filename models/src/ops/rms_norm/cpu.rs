//! Rows in parallel; groups of rows where there is a sum over them.

use rayon::prelude::*;

use crate::ops::row_sums::{GROUP_ROWS, RowSums, add_partial};
use crate::ops::simd::{self, RUN};
use crate::ops::{Element, Float, ROW_CHUNK};

/// Writes `y` (N, C) and, per row, 1 / root mean square to `inverses` (N).
///
/// # Panics
/// Panics if lengths do not fit together.
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

/// Writes `y` (N, C), recomputed from `x` and the `inverses` of [`forward`].
///
/// # Panics
/// Panics if lengths do not fit together.
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
/// Panics if lengths do not fit together, or if `sums` are for fewer than N rows of C numbers.
pub fn backward<E: Element>(
    dx: &mut [E],
    dweight: &mut [E::Wide],
    dy: &[E],
    (inverses, x): (&[E::Wide], &[E]),
    weight: &[E],
    sums: &mut RowSums<E::Wide>,
) {
    let width = check(dx, inverses, x, weight);
    assert_eq!(dy.len(), x.len(), "dy (N, C)");
    assert_eq!(dweight.len(), width, "dw (C)");
    let partial = sums.partial(inverses.len(), width);
    let inputs = x.par_chunks(GROUP_ROWS * width).zip(inverses.par_chunks(GROUP_ROWS));
    let inputs = inputs.zip(dy.par_chunks(GROUP_ROWS * width));
    let outputs = dx.par_chunks_mut(GROUP_ROWS * width).zip(partial.par_chunks_mut(width));
    outputs.zip(inputs).for_each(|((dx, dweight), ((x, inverses), dy))| {
        simd::vectorize(
            #[inline(always)]
            || {
                dweight.fill(E::Wide::ZERO);
                let rows = dx.chunks_exact_mut(width).zip(dy.chunks_exact(width));
                for (((dx, dy), x), &inverse) in rows.zip(x.chunks_exact(width)).zip(inverses) {
                    Row { dx, dweight: &mut *dweight, dy, x, weight }.backward(inverse);
                }
            },
        );
    });
    add_partial(dweight, partial, width, 0);
}

/// One row of a backward.
struct Row<'a, E: Element> {
    dx: &'a mut [E],
    /// The sums that its part of dw is added to.
    dweight: &'a mut [E::Wide],
    dy: &'a [E],
    x: &'a [E],
    weight: &'a [E],
}

impl<E: Element> Row<'_, E> {
    /// With g = dy w and h = x / root mean square.
    #[inline(always)]
    fn backward(mut self, inverse: E::Wide) {
        let width = self.x.len();
        let [sum_gx] = simd::sums_of_three(self.dy, self.weight, self.x, |dy, w, x| [dy * w * x]);
        let mean_gh = sum_gx * inverse / E::Wide::from_f64(width as f64);
        let whole = width / RUN * RUN;
        for start in (0..whole).step_by(RUN) {
            self.run::<RUN>(start, inverse, mean_gh);
        }
        for start in whole..width {
            self.run::<1>(start, inverse, mean_gh);
        }
    }

    #[inline(always)]
    fn run<const N: usize>(&mut self, start: usize, inverse: E::Wide, mean_gh: E::Wide) {
        // Prefetches the next row, which the sums over it read first.
        let next_row = start + self.x.len();
        for row in [&*self.dx, self.dy, self.x] {
            simd::prefetch(row.as_ptr().wrapping_add(next_row), N);
        }
        let mut dx: [E; N] = simd::values(self.dx, start);
        let mut dweight: [E::Wide; N] = simd::values(self.dweight, start);
        let dy: [E; N] = simd::values(self.dy, start);
        let x: [E; N] = simd::values(self.x, start);
        let weight: [E; N] = simd::values(self.weight, start);
        for lane in 0..N {
            let dy = dy[lane].widen();
            let h = x[lane].widen() * inverse;
            let g = dy * weight[lane].widen();
            dx[lane] = E::narrow(dx[lane].widen() + inverse * (g - h * mean_gh));
            dweight[lane] += dy * h;
        }
        self.dx[start..start + N].copy_from_slice(&dx);
        self.dweight[start..start + N].copy_from_slice(&dweight);
    }
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
    use crate::ops::row_sums::{GROUP_ROWS, RowSums};
    use crate::ops::testing::{
        check_gradient, inner, narrowed, on_threads, relative_error, uniform, widened,
    };

    const ROWS: usize = GROUP_ROWS + 3;
    const WIDTH: usize = 70;
    const EPSILON: f64 = 1e-3;

    /// y, 1 / root mean square, dx and dw, starting from 0.
    type All<E> = (Vec<E>, Vec<<E as Element>::Wide>, Vec<E>, Vec<<E as Element>::Wide>);

    fn run<E: Element>(x: &[E], weight: &[E], dy: &[E]) -> All<E> {
        let mut inverses = vec![E::Wide::ZERO; ROWS];
        let mut y = vec![E::ZERO; x.len()];
        let mut dx = vec![E::ZERO; x.len()];
        let mut dweight = vec![E::Wide::ZERO; WIDTH];
        forward(&mut y, &mut inverses, x, weight, EPSILON);
        let sums = &mut RowSums::new(&device::Allocator::host(), ROWS, WIDTH);
        backward(&mut dx, &mut dweight, dy, (&inverses, x), weight, sums);
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
        let mut recomputed = vec![0.0; x.len()];
        apply(&mut recomputed, &inverses, &x, &weight);
        assert_eq!(recomputed, y);
    }

    #[test]
    fn backward_agrees_with_finite_differences() {
        let [x, weight, dy] = inputs();
        let (_, inverses, ..) = run(&x, &weight, &dy);
        // Gradients are added to what is there.
        let mut dx = vec![0.5; x.len()];
        let mut dweight = vec![0.25; WIDTH];
        let sums = &mut RowSums::new(&device::Allocator::host(), 3 * ROWS, WIDTH);
        // Leftovers of an earlier use with more rows are not added.
        sums.partial(3 * ROWS, WIDTH).fill(7.5);
        backward(&mut dx, &mut dweight, &dy, (&inverses, &x), &weight, sums);
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

    /// One rounding to bf16 of each element, less than 2^-9 of all in the norm; sums are f32.
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
