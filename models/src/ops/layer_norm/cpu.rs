//! Rows in parallel for everything per row; columns in parallel for the sums over rows.

use rayon::prelude::*;

use super::{EPSILON, Gradients, Parameters};
use crate::ops::{COLUMN_CHUNK, Element, Float, ROW_CHUNK, simd};

/// Writes `y` (N, C) and, per row, mean and 1 / standard deviation to `stats` (N, 2).
///
/// # Panics
/// When lengths do not fit together.
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

/// Writes `y` (N, C) again from `x` and the `stats` of [`forward`].
///
/// # Panics
/// When lengths do not fit together.
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
/// When lengths do not fit together.
pub fn backward<E: Element>(
    dx: &mut [E],
    gradients: Gradients<'_, E::Wide>,
    dy: &[E],
    stats: &[[E::Wide; 2]],
    x: &[E],
    weight: &[E],
) {
    let width = check(dx, stats, x, Parameters { weight, bias: weight });
    assert_eq!(dy.len(), x.len(), "dy (N, C)");
    assert_eq!(gradients.weight.len(), width, "dw (C)");
    assert_eq!(gradients.bias.len(), width, "db (C)");
    parameters(gradients, dy, stats, x);
    let inputs = x.par_chunks(ROW_CHUNK * width).zip(stats.par_chunks(ROW_CHUNK));
    let rows = dx.par_chunks_mut(ROW_CHUNK * width).zip(dy.par_chunks(ROW_CHUNK * width));
    rows.zip(inputs).for_each(|((dx, dy), (x, stats))| {
        simd::vectorize(
            #[inline(always)]
            || {
                let rows = dx.chunks_exact_mut(width).zip(dy.chunks_exact(width));
                for (((dx, dy), x), &stats) in rows.zip(x.chunks_exact(width)).zip(stats) {
                    row(dx, dy, x, stats, weight);
                }
            },
        );
    });
}

/// One row of dx, with g = dy w and h = (x - mean) / standard deviation.
#[inline(always)]
fn row<E: Element>(dx: &mut [E], dy: &[E], x: &[E], [mean, inverse]: [E::Wide; 2], weight: &[E]) {
    let count = E::Wide::from_f64(x.len() as f64);
    let mean_g = simd::dot(dy, weight) / count;
    let mean_gh = simd::sum_of_three(dy, weight, x, |dy, w, x| dy * w * (x - mean));
    let mean_gh = mean_gh * inverse / count;
    for ((dx, &dy), (&x, &weight)) in dx.iter_mut().zip(dy).zip(x.iter().zip(weight)) {
        let (g, h) = (dy.widen() * weight.widen(), (x.widen() - mean) * inverse);
        *dx = E::narrow(dx.widen() + inverse * (g - mean_g - h * mean_gh));
    }
}

/// Sums over rows, each column by one task in the order of the rows.
fn parameters<E: Element>(
    gradients: Gradients<'_, E::Wide>,
    dy: &[E],
    stats: &[[E::Wide; 2]],
    x: &[E],
) {
    let width = gradients.weight.len();
    let columns = gradients
        .weight
        .par_chunks_mut(COLUMN_CHUNK)
        .zip(gradients.bias.par_chunks_mut(COLUMN_CHUNK));
    columns.enumerate().for_each(|(chunk, (dweight, dbias))| {
        simd::vectorize(
            #[inline(always)]
            || {
                let columns = chunk * COLUMN_CHUNK..chunk * COLUMN_CHUNK + dweight.len();
                let mut sums = [[E::Wide::ZERO; COLUMN_CHUNK]; 2];
                let rows = dy.chunks_exact(width).zip(x.chunks_exact(width));
                for ((dy, x), &[mean, inverse]) in rows.zip(stats) {
                    let (dy, x) = (&dy[columns.clone()], &x[columns.clone()]);
                    let [weights, biases] = &mut sums;
                    let sums = weights.iter_mut().zip(biases);
                    for ((weight, bias), (&dy, &x)) in sums.zip(dy.iter().zip(x)) {
                        *weight += dy.widen() * (x.widen() - mean) * inverse;
                        *bias += dy.widen();
                    }
                }
                for (total, &sum) in dweight.iter_mut().zip(&sums[0]) {
                    *total += sum;
                }
                for (total, &sum) in dbias.iter_mut().zip(&sums[1]) {
                    *total += sum;
                }
            },
        );
    });
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
    use super::{Gradients, Parameters, apply, backward, forward};
    use crate::ops::testing::{check_gradient, inner, uniform};

    const ROWS: usize = 19;
    const WIDTH: usize = 70;

    fn run(x: &[f64], weight: &[f64], bias: &[f64]) -> (Vec<f64>, Vec<[f64; 2]>) {
        let (mut y, mut stats) = (vec![0.0; x.len()], vec![[0.0; 2]; ROWS]);
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
        let (weight, bias): (Vec<f64>, Vec<f64>) = (uniform(WIDTH, 2), uniform(WIDTH, 3));
        let (affine, _) = run(&x, &weight, &bias);
        for (i, (affine, plain)) in affine.iter().zip(&y).enumerate() {
            let exact = plain * weight[i % WIDTH] + bias[i % WIDTH];
            assert!((affine - exact).abs() < 1e-12);
        }
        let mut again = vec![0.0; x.len()];
        apply(&mut again, &stats, &x, Parameters { weight: &weight, bias: &bias });
        assert_eq!(again, affine);
    }

    #[test]
    fn backward_agrees_with_finite_differences() {
        let x: Vec<f64> = uniform(ROWS * WIDTH, 1);
        let (weight, bias): (Vec<f64>, Vec<f64>) = (uniform(WIDTH, 2), uniform(WIDTH, 3));
        let dy: Vec<f64> = uniform(ROWS * WIDTH, 4);
        let (_, stats) = run(&x, &weight, &bias);
        // Gradients are added to what is there.
        let mut dx = vec![0.5; x.len()];
        let (mut dweight, mut dbias) = (vec![0.25; WIDTH], vec![0.125; WIDTH]);
        let gradients = Gradients { weight: &mut dweight, bias: &mut dbias };
        backward(&mut dx, gradients, &dy, &stats, &x, &weight);
        dx.iter_mut().for_each(|d| *d -= 0.5);
        dweight.iter_mut().for_each(|d| *d -= 0.25);
        dbias.iter_mut().for_each(|d| *d -= 0.125);
        check_gradient("x", &x, &dx, |x| inner(&run(x, &weight, &bias).0, &dy));
        check_gradient("weight", &weight, &dweight, |w| inner(&run(&x, w, &bias).0, &dy));
        check_gradient("bias", &bias, &dbias, |b| inner(&run(&x, &weight, b).0, &dy));
    }
}
