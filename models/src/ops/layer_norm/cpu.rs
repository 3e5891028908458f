//! Rows in parallel; groups of rows where there are sums over them.

use rayon::prelude::*;

use super::{EPSILON, Gradients, Parameters};
use crate::ops::row_sums::{GROUP_ROWS, RowSums, add_partial};
use crate::ops::simd::{self, RUN};
use crate::ops::{Element, Float, ROW_CHUNK};

/// Writes `y` (N, C) and, per row, mean and 1 / standard deviation to `stats` (N, 2).
///
/// # Panics
/// Panics if lengths do not fit together.
pub fn forward<E: Element>(
    y: &mut [E],
    stats: &mut [[E::Wide; 2]],
    x: &[E],
    norm: Parameters<'_, E>,
) {
    let width = check(y, stats, x, norm);
    let inputs = x.par_chunks(ROW_CHUNK * width);
    let outputs = y.par_chunks_mut(ROW_CHUNK * width).zip(stats.par_chunks_mut(ROW_CHUNK));
    outputs.zip(inputs).for_each(|((y, stats), x)| {
        simd::vectorize(
            #[inline(always)]
            || {
                let rows = y.chunks_exact_mut(width).zip(x.chunks_exact(width));
                for ((y, x), stats) in rows.zip(stats) {
                    *stats = statistics(x);
                    normalise(y, x, *stats, norm);
                }
            },
        );
    });
}

/// Writes `y` (N, C), recomputed from `x` and the `stats` of [`forward`].
///
/// # Panics
/// Panics if lengths do not fit together.
pub fn apply<E: Element>(y: &mut [E], stats: &[[E::Wide; 2]], x: &[E], norm: Parameters<'_, E>) {
    let width = check(y, stats, x, norm);
    let inputs = x.par_chunks(ROW_CHUNK * width).zip(stats.par_chunks(ROW_CHUNK));
    y.par_chunks_mut(ROW_CHUNK * width).zip(inputs).for_each(|(y, (x, stats))| {
        simd::vectorize(
            #[inline(always)]
            || {
                let rows = y.chunks_exact_mut(width).zip(x.chunks_exact(width));
                for ((y, x), stats) in rows.zip(stats) {
                    normalise(y, x, *stats, norm);
                }
            },
        );
    });
}

/// Mean and 1 / standard deviation of a row; the squares are of differences.
#[inline(always)]
fn statistics<E: Element>(x: &[E]) -> [E::Wide; 2] {
    let count = E::Wide::from_f64(x.len() as f64);
    let mean = simd::sum(x) / count;
    let variance = simd::sum_of(x, x, |x, _| (x - mean) * (x - mean)) / count;
    [mean, E::Wide::ONE / (variance + E::Wide::from_f64(EPSILON)).sqrt()]
}

#[inline(always)]
fn normalise<E: Element>(
    y: &mut [E],
    x: &[E],
    [mean, inverse]: [E::Wide; 2],
    norm: Parameters<'_, E>,
) {
    let parameters = norm.weight.iter().zip(norm.bias);
    for ((y, &x), (&weight, &bias)) in y.iter_mut().zip(x).zip(parameters) {
        *y = E::narrow((x.widen() - mean) * inverse * weight.widen() + bias.widen());
    }
}

/// Adds to `dx` (N, C) and to the parameters' gradients from `dy` (N, C) and what forward saw.
///
/// # Panics
/// Panics if lengths do not fit together, or if `sums` are for fewer than N rows of 2 C numbers.
pub fn backward<E: Element>(
    dx: &mut [E],
    gradients: Gradients<'_, E::Wide>,
    dy: &[E],
    (stats, x): (&[[E::Wide; 2]], &[E]),
    weight: &[E],
    sums: &mut RowSums<E::Wide>,
) {
    let width = check(dx, stats, x, Parameters { weight, bias: weight });
    assert_eq!(dy.len(), x.len(), "dy (N, C)");
    assert_eq!(gradients.weight.len(), width, "dw (C)");
    assert_eq!(gradients.bias.len(), width, "db (C)");
    let partial = sums.partial(stats.len(), 2 * width);
    let inputs = x.par_chunks(GROUP_ROWS * width).zip(stats.par_chunks(GROUP_ROWS));
    let inputs = inputs.zip(dy.par_chunks(GROUP_ROWS * width));
    let outputs = dx.par_chunks_mut(GROUP_ROWS * width).zip(partial.par_chunks_mut(2 * width));
    outputs.zip(inputs).for_each(|((dx, partial), ((x, stats), dy))| {
        simd::vectorize(
            #[inline(always)]
            || {
                partial.fill(E::Wide::ZERO);
                let (dweight, dbias) = partial.split_at_mut(width);
                let rows = dx.chunks_exact_mut(width).zip(dy.chunks_exact(width));
                for (((dx, dy), x), &stats) in rows.zip(x.chunks_exact(width)).zip(stats) {
                    let dweight = &mut *dweight;
                    let dbias = &mut *dbias;
                    Row { dx, dweight, dbias, dy, x, weight }.backward(stats);
                }
            },
        );
    });
    add_partial(gradients.weight, partial, 2 * width, 0);
    add_partial(gradients.bias, partial, 2 * width, width);
}

/// One row of a backward.
struct Row<'a, E: Element> {
    dx: &'a mut [E],
    /// The sums that its part of dw and db is added to.
    dweight: &'a mut [E::Wide],
    dbias: &'a mut [E::Wide],
    dy: &'a [E],
    x: &'a [E],
    weight: &'a [E],
}

impl<E: Element> Row<'_, E> {
    /// With g = dy w and h = (x - mean) / standard deviation.
    #[inline(always)]
    fn backward(mut self, [mean, inverse]: [E::Wide; 2]) {
        let count = E::Wide::from_f64(self.x.len() as f64);
        let [sum_g, sum_gh] = simd::sums_of_three(self.dy, self.weight, self.x, |dy, w, x| {
            [dy * w, dy * w * (x - mean)]
        });
        let means = [sum_g / count, sum_gh * inverse / count];
        let whole = self.x.len() / RUN * RUN;
        for start in (0..whole).step_by(RUN) {
            self.run::<RUN>(start, [mean, inverse], means);
        }
        for start in whole..self.x.len() {
            self.run::<1>(start, [mean, inverse], means);
        }
    }

    #[inline(always)]
    fn run<const N: usize>(
        &mut self,
        start: usize,
        [mean, inverse]: [E::Wide; 2],
        [mean_g, mean_gh]: [E::Wide; 2],
    ) {
        // Prefetches the next row, which the sums over it read first.
        let next_row = start + self.x.len();
        for row in [&*self.dx, self.dy, self.x] {
            simd::prefetch(row.as_ptr().wrapping_add(next_row), N);
        }
        let mut dx: [E; N] = simd::values(self.dx, start);
        let mut dweight: [E::Wide; N] = simd::values(self.dweight, start);
        let mut dbias: [E::Wide; N] = simd::values(self.dbias, start);
        let dy: [E; N] = simd::values(self.dy, start);
        let x: [E; N] = simd::values(self.x, start);
        let weight: [E; N] = simd::values(self.weight, start);
        for lane in 0..N {
            let dy = dy[lane].widen();
            let h = (x[lane].widen() - mean) * inverse;
            let g = dy * weight[lane].widen();
            dx[lane] = E::narrow(dx[lane].widen() + inverse * (g - mean_g - h * mean_gh));
            dweight[lane] += dy * h;
            dbias[lane] += dy;
        }
        self.dx[start..start + N].copy_from_slice(&dx);
        self.dweight[start..start + N].copy_from_slice(&dweight);
        self.dbias[start..start + N].copy_from_slice(&dbias);
    }
}

fn check<E: Element>(y: &[E], stats: &[[E::Wide; 2]], x: &[E], norm: Parameters<'_, E>) -> usize {
    let width = norm.weight.len();
    assert_eq!(norm.bias.len(), width, "bias (C)");
    assert_eq!(x.len(), stats.len() * width, "x (N, C), stats (N, 2)");
    assert_eq!(y.len(), x.len(), "y (N, C)");
    width
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::{Gradients, Parameters, apply, backward, forward};
    use crate::ops::Element;
    use crate::ops::row_sums::{GROUP_ROWS, RowSums};
    use crate::ops::testing::{
        check_gradient, inner, narrowed, on_threads, relative_error, uniform, widened,
    };

    const ROWS: usize = GROUP_ROWS + 3;
    const WIDTH: usize = 70;

    fn run(x: &[f64], weight: &[f64], bias: &[f64]) -> (Vec<f64>, Vec<[f64; 2]>) {
        let mut y = vec![0.0; x.len()];
        let mut stats = vec![[0.0; 2]; ROWS];
        forward(&mut y, &mut stats, x, Parameters { weight, bias });
        (y, stats)
    }

    #[test]
    fn rows_have_mean_zero_and_variance_one_before_the_affine_map() {
        let x: Vec<f64> = uniform(ROWS * WIDTH, 1);
        let (y, stats) = run(&x, &[1.0; WIDTH], &[0.0; WIDTH]);
        for row in y.chunks(WIDTH) {
            let mean = row.iter().sum::<f64>() / WIDTH as f64;
            let variance = row.iter().map(|y| y * y).sum::<f64>() / WIDTH as f64;
            assert!(mean.abs() < 1e-12 && (variance - 1.0).abs() < 1e-4, "{mean} {variance}");
        }
        let weight: Vec<f64> = uniform(WIDTH, 2);
        let bias: Vec<f64> = uniform(WIDTH, 3);
        let (affine, _) = run(&x, &weight, &bias);
        for (i, (affine, plain)) in affine.iter().zip(&y).enumerate() {
            let exact = plain * weight[i % WIDTH] + bias[i % WIDTH];
            assert!((affine - exact).abs() < 1e-12);
        }
        let mut recomputed = vec![0.0; x.len()];
        apply(&mut recomputed, &stats, &x, Parameters { weight: &weight, bias: &bias });
        assert_eq!(recomputed, affine);
    }

    #[test]
    fn backward_agrees_with_finite_differences() {
        let x: Vec<f64> = uniform(ROWS * WIDTH, 1);
        let weight: Vec<f64> = uniform(WIDTH, 2);
        let bias: Vec<f64> = uniform(WIDTH, 3);
        let dy: Vec<f64> = uniform(ROWS * WIDTH, 4);
        let (_, stats) = run(&x, &weight, &bias);
        // Gradients are added to what is there.
        let mut dx = vec![0.5; x.len()];
        let mut dweight = vec![0.25; WIDTH];
        let mut dbias = vec![0.125; WIDTH];
        let gradients = Gradients { weight: &mut dweight, bias: &mut dbias };
        let sums = &mut RowSums::new(&device::Allocator::host(), 3 * ROWS, 2 * WIDTH);
        // Leftovers of an earlier use with more rows are not added.
        sums.partial(3 * ROWS, 2 * WIDTH).fill(7.5);
        backward(&mut dx, gradients, &dy, (&stats, &x), &weight, sums);
        dx.iter_mut().for_each(|d| *d -= 0.5);
        dweight.iter_mut().for_each(|d| *d -= 0.25);
        dbias.iter_mut().for_each(|d| *d -= 0.125);
        check_gradient("x", &x, &dx, |x| inner(&run(x, &weight, &bias).0, &dy));
        check_gradient("weight", &weight, &dweight, |w| inner(&run(&x, w, &bias).0, &dy));
        check_gradient("bias", &bias, &dbias, |b| inner(&run(&x, &weight, b).0, &dy));
    }

    /// y, dx, dw and db, starting from 0.
    type All<E> = (Vec<E>, Vec<E>, Vec<<E as Element>::Wide>, Vec<<E as Element>::Wide>);

    fn all<E: Element>([x, weight, bias, dy]: &[Vec<E>; 4]) -> All<E> {
        let mut stats = vec![[E::Wide::ZERO; 2]; ROWS];
        let mut y = vec![E::ZERO; x.len()];
        let mut dx = vec![E::ZERO; x.len()];
        let [mut dweight, mut dbias] = [0, 1].map(|_| vec![E::Wide::ZERO; WIDTH]);
        forward(&mut y, &mut stats, x, Parameters { weight, bias });
        let gradients = Gradients { weight: &mut dweight, bias: &mut dbias };
        let sums = &mut RowSums::new(&device::Allocator::host(), ROWS, 2 * WIDTH);
        backward(&mut dx, gradients, dy, (&stats, x), weight, sums);
        (y, dx, dweight, dbias)
    }

    fn inputs<E: Element>() -> [Vec<E>; 4] {
        [(ROWS * WIDTH, 1), (WIDTH, 2), (WIDTH, 3), (ROWS * WIDTH, 4)]
            .map(|(len, seed)| narrowed(&uniform(len, seed)))
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let inputs = inputs::<f32>();
        let alone = on_threads(1, || all(&inputs));
        assert_eq!(on_threads(3, || all(&inputs)), alone);
    }

    /// One rounding to bf16 of each element, less than 2^-9 of all in the norm; sums are f32.
    #[test]
    fn bf16_rounds_once() {
        let inputs = inputs::<bf16>();
        let (y, dx, dweight, dbias) = all(&inputs);
        let exact = all(&inputs.map(|values| widened(&values)));
        for (name, error, bound) in [
            ("y", relative_error(&widened(&y), &exact.0), 1.0 / 512.0),
            ("dx", relative_error(&widened(&dx), &exact.1), 1.0 / 512.0),
            ("dw", relative_error(&dweight, &exact.2), 1e-6),
            ("db", relative_error(&dbias, &exact.3), 1e-6),
        ] {
            assert!(error < bound, "{name}: relative error {error:e}");
        }
    }
}
