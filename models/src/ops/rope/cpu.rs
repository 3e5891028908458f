//! Rows in parallel; the pairs of a head along the vectors.

use rayon::prelude::*;

use super::{Shape, Tables};
use crate::ops::{Element, ROW_CHUNK, simd};

/// Rotates the first heads of every row of `qkv` (B T, (H + 2 K) D) in place.
///
/// # Panics
/// Panics if lengths do not fit together.
pub fn forward<E: Element>(qkv: &mut [E], tables: &Tables<E::Wide>, shape: Shape) {
    rotate(qkv, tables, shape, |sine| sine);
}

/// Converts the gradient of the output of [`forward`] to that of its input, in place.
///
/// # Panics
/// Panics if lengths do not fit together.
pub fn backward<E: Element>(dqkv: &mut [E], tables: &Tables<E::Wide>, shape: Shape) {
    rotate(dqkv, tables, shape, |sine| -sine);
}

/// Rotates by the angle whose sine `direction` gives, forward or backward.
#[inline(always)]
fn rotate<E: Element>(
    qkv: &mut [E],
    tables: &Tables<E::Wide>,
    shape: Shape,
    direction: impl Fn(E::Wide) -> E::Wide + Copy + Sync,
) {
    let pairs = tables.pairs;
    let columns = shape.columns;
    let sequence = tables.cosine.len() / pairs * columns;
    assert!(qkv.len().is_multiple_of(sequence), "qkv (B T, {columns})");
    assert!(shape.heads * 2 * pairs <= columns, "{shape:?} of width {}", 2 * pairs);
    qkv.par_chunks_mut(sequence).for_each(|qkv| {
        let angles = tables.cosine.host().par_chunks(ROW_CHUNK * pairs);
        let angles = angles.zip(tables.sine.host().par_chunks(ROW_CHUNK * pairs));
        qkv.par_chunks_mut(ROW_CHUNK * columns).zip(angles).for_each(|(rows, (cosine, sine))| {
            simd::vectorize(
                #[inline(always)]
                || {
                    let angles = cosine.chunks_exact(pairs).zip(sine.chunks_exact(pairs));
                    for (row, (cosine, sine)) in rows.chunks_exact_mut(columns).zip(angles) {
                        let heads = &mut row[..shape.heads * 2 * pairs];
                        for head in heads.chunks_exact_mut(2 * pairs) {
                            rotate_head(head, cosine, sine, direction);
                        }
                    }
                },
            );
        });
    });
}

#[inline(always)]
fn rotate_head<E: Element>(
    head: &mut [E],
    cosine: &[E::Wide],
    sine: &[E::Wide],
    direction: impl Fn(E::Wide) -> E::Wide,
) {
    let (first, second) = head.split_at_mut(cosine.len());
    let angles = cosine.iter().zip(sine);
    for ((first, second), (&cosine, &sine)) in first.iter_mut().zip(second).zip(angles) {
        let x = first.widen();
        let y = second.widen();
        let sine = direction(sine);
        *first = E::narrow(x * cosine - y * sine);
        *second = E::narrow(y * cosine + x * sine);
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::{Shape, Tables, backward, forward};
    use crate::config::Llama;
    use crate::ops::testing::{
        check_gradient, inner, narrowed, on_threads, relative_error, uniform, widened,
    };

    const SEQUENCES: usize = 2;
    const TOKENS: usize = 37;
    const HEAD_WIDTH: usize = 10;
    /// H = 3, K = 1.
    const SHAPE: Shape = Shape { columns: 5 * HEAD_WIDTH, heads: 4 };
    const ELEMENTS: usize = SEQUENCES * TOKENS * SHAPE.columns;

    fn tables<W: crate::ops::Float>() -> Tables<W> {
        Tables::new(
            &device::Allocator::host(),
            &Llama::plain(3).angles_per_token(HEAD_WIDTH),
            TOKENS,
        )
    }

    #[test]
    fn pairs_rotate_by_position_and_values_stay() {
        let before: Vec<f64> = uniform(ELEMENTS, 1);
        let mut after = before.clone();
        forward(&mut after, &tables(), SHAPE);
        let angles = Llama::plain(3).angles_per_token(HEAD_WIDTH);
        for (index, (before, after)) in
            before.chunks(HEAD_WIDTH).zip(after.chunks(HEAD_WIDTH)).enumerate()
        {
            let position = index / 5 % TOKENS;
            let head = index % 5;
            for (pair, angle) in angles.iter().enumerate() {
                let x = before[pair];
                let y = before[pair + 5];
                let angle = if head < 4 { position as f64 * angle } else { 0.0 };
                let radius = x.hypot(y);
                let start = y.atan2(x);
                let exact =
                    [(start + angle).cos(), (start + angle).sin()].map(|unit| unit * radius);
                let error = (after[pair] - exact[0]).hypot(after[pair + 5] - exact[1]);
                assert!(error < 1e-14, "position {position}, head {head}, pair {pair}: {error:e}");
            }
        }
    }

    #[test]
    fn backward_agrees_with_finite_differences() {
        let x: Vec<f64> = uniform(ELEMENTS, 1);
        let dy: Vec<f64> = uniform(ELEMENTS, 2);
        let mut dx = dy.clone();
        backward(&mut dx, &tables(), SHAPE);
        check_gradient("qkv", &x, &dx, |x| {
            let mut y = x.to_vec();
            forward(&mut y, &tables(), SHAPE);
            inner(&y, &dy)
        });
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let rotated = || {
            let mut qkv: Vec<f32> = uniform(ELEMENTS, 1);
            forward(&mut qkv, &tables(), SHAPE);
            qkv
        };
        assert_eq!(on_threads(1, rotated), on_threads(3, rotated));
    }

    /// One rounding to bf16 of each element, 2^-9 of it at most.
    #[test]
    fn bf16_rounds_once() {
        let mut qkv = narrowed::<bf16>(&uniform(ELEMENTS, 1));
        let mut exact = widened(&qkv);
        forward(&mut qkv, &tables(), SHAPE);
        forward(&mut exact, &tables(), SHAPE);
        let error = relative_error(&widened(&qkv), &exact);
        assert!(error < 1.0 / 512.0, "relative error {error:e}");
    }
}
