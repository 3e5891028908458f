//! Helpers of the tests of several ops.

use super::{Element, Float};
use crate::rng::{Purpose, Stream};

/// `len` numbers uniform in [-1, 1).
pub(crate) fn uniform<T: Float>(len: usize, seed: u64) -> Vec<T> {
    let stream = Stream::new(seed, Purpose::Test);
    (0..len as u64).map(|i| T::from_f64(stream.signed(i))).collect()
}

/// The elements nearest to these values.
pub(crate) fn narrowed<E: Element>(values: &[f64]) -> Vec<E> {
    values.iter().map(|value| E::narrow(E::Wide::from_f64(*value))).collect()
}

/// The values of these elements, exactly.
pub(crate) fn widened<E: Element>(elements: &[E]) -> Vec<f64> {
    elements.iter().map(|element| element.widen().to_f64()).collect()
}

/// The inner product, as a loss whose gradient with respect to `a` is `b`.
pub(crate) fn inner(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// |found - exact| / |exact| in the Euclidean norm.
pub(crate) fn relative_error<T: Float>(found: &[T], exact: &[f64]) -> f64 {
    assert_eq!(found.len(), exact.len());
    let square = |x: f64| x * x;
    let error: f64 = found.iter().zip(exact).map(|(f, e)| square(f.to_f64() - e)).sum();
    let size: f64 = exact.iter().map(|e| square(*e)).sum();
    (error / size).sqrt()
}

/// Compares a gradient with central differences of `loss` in every element.
pub(crate) fn check_gradient(
    name: &str,
    at: &[f64],
    gradient: &[f64],
    mut loss: impl FnMut(&[f64]) -> f64,
) {
    const STEP: f64 = 1e-5;
    let mut moved = at.to_vec();
    let mut difference = |i: usize| {
        moved[i] = at[i] + STEP;
        let above = loss(&moved);
        moved[i] = at[i] - STEP;
        let below = loss(&moved);
        moved[i] = at[i];
        (above - below) / (2.0 * STEP)
    };
    let differences: Vec<f64> = (0..at.len()).map(&mut difference).collect();
    assert!(differences.iter().any(|d| *d != 0.0), "{name}: the loss does not depend on it");
    let error = relative_error(gradient, &differences);
    assert!(error < 1e-7, "{name}: relative error {error:e}");
}

/// Runs `work` inside a pool of this many threads.
pub(crate) fn on_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.expect("a thread pool").install(work)
}
