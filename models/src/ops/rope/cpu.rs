//! Rows in parallel; the pairs of a head along the vectors.

use rayon::prelude::*;

use super::{Shape, Tables};
use crate::ops::{Element, ROW_CHUNK, simd};

/// Turns the first heads of every row of `qkv` (B T, (H + 2 K) D) in place.
///
/// # Panics
/// When lengths do not fit together.
pub fn forward<E: Element>(qkv: &mut [E], tables: &Tables<E::Wide>, shape: Shape) {
    turn(qkv, tables, shape, |angle| angle);
}

/// Turns the gradient of what [`forward`] wrote into that of what it read, in place.
///
/// # Panics
/// When lengths do not fit together.
pub fn backward<E: Element>(dqkv: &mut [E], tables: &Tables<E::Wide>, shape: Shape) {
    turn(dqkv, tables, shape, |sine| -sine);
}

/// Turns by the angle with this sine, forward or back.
#[inline(always)]
fn turn<E: Element>(
    qkv: &mut [E],
    tables: &Tables<E::Wide>,
    shape: Shape,
    direction: impl Fn(E::Wide) -> E::Wide + Copy + Sync,
) {
    let (pairs, columns) = (tables.pairs, shape.columns);
    let sequence = tables.cosine.len() / pairs * columns;
    assert!(qkv.len().is_multiple_of(sequence), "qkv (B T, {columns})");
    assert!(shape.heads * 2 * pairs <= columns, "{shape:?} of width {}", 2 * pairs);
    qkv.par_chunks_mut(sequence).for_each(|qkv| {
        let angles = tables.cosine.par_chunks(ROW_CHUNK * pairs);
        let angles = angles.zip(tables.sine.par_chunks(ROW_CHUNK * pairs));
        qkv.par_chunks_mut(ROW_CHUNK * columns).zip(angles).for_each(|(rows, (cosine, sine))| {
            simd::vectorize(
                #[inline(always)]
                || {
                    let angles = cosine.chunks_exact(pairs).zip(sine.chunks_exact(pairs));
                    for (row, (cosine, sine)) in rows.chunks_exact_mut(columns).zip(angles) {
                        let heads = &mut row[..shape.heads * 2 * pairs];
                        for head in heads.chunks_exact_mut(2 * pairs) {
                            turn_head(head, cosine, sine, direction);
                        }
                    }
                },
            );
        });
    });
}

#[inline(always)]
fn turn_head<E: Element>(
    head: &mut [E],
    cosine: &[E::Wide],
    sine: &[E::Wide],
    direction: impl Fn(E::Wide) -> E::Wide,
) {
    let (first, second) = head.split_at_mut(cosine.len());
    let angles = cosine.iter().zip(sine);
    for ((first, second), (&cosine, &sine)) in first.iter_mut().zip(second).zip(angles) {
        let (x, y, sine) = (first.widen(), second.widen(), direction(sine));
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
        Tables::new(&Llama::plain(3).angles_per_token(HEAD_WIDTH), TOKENS)
    }

    #[test]
    fn pairs_turn_by_position_and_values_stay() {
        let before: Vec<f64> = uniform(ELEMENTS, 1);
        let mut after = before.clone();
        forward(&mut after, &tables(), SHAPE);
        let angles = Llama::plain(3).angles_per_token(HEAD_WIDTH);
        for (index, (before, after)) in
            before.chunks(HEAD_WIDTH).zip(after.chunks(HEAD_WIDTH)).enumerate()
        {
            let (position, head) = (index / 5 % TOKENS, index % 5);
            for (pair, angle) in angles.iter().enumerate() {
                let (x, y) = (before[pair], before[pair + 5]);
                let turn = if head < 4 { position as f64 * angle } else { 0.0 };
                let (radius, start) = (x.hypot(y), y.atan2(x));
                let exact = [(start + turn).cos(), (start + turn).sin()].map(|unit| unit * radius);
                let error = (after[pair] - exact[0]).hypot(after[pair + 5] - exact[1]);
                assert!(error < 1e-14, "position {position}, head {head}, pair {pair}: {error:e}");
            }
        }
    }

    #[test]
    fn backward_agrees_with_finite_differences() {
        let (x, dy): (Vec<f64>, Vec<f64>) = (uniform(ELEMENTS, 1), uniform(ELEMENTS, 2));
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
        let turned = || {
            let mut qkv: Vec<f32> = uniform(ELEMENTS, 1);
            forward(&mut qkv, &tables(), SHAPE);
            qkv
        };
        assert_eq!(on_threads(1, turned), on_threads(3, turned));
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
