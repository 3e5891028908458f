//! Rows copied forward, rows summed backward.

use rayon::prelude::*;

use crate::ops::{Element, simd};

/// Tasks among which the rows of the token table are divided for backward.
const TABLE_PARTS: usize = 64;

/// Writes `x` (B, T, C) from `tokens` (B, T), `wte` (V, C) and, if there is one, `wpe` (at least T,
/// C).
///
/// # Panics
/// Panics if a token is not below V, or if lengths do not fit together.
pub fn forward<E: Element>(
    x: &mut [E],
    tokens: &[u32],
    (wte, wpe): (&[E], Option<&[E]>),
    (sequence_tokens, width): (usize, usize),
) {
    assert_eq!(x.len(), tokens.len() * width, "x (B, T, C)");
    let Some(wpe) = wpe else {
        return x.par_chunks_exact_mut(width).zip(tokens).for_each(|(x, &token)| {
            x.copy_from_slice(&wte[token as usize * width..][..width]);
        });
    };
    assert!(wpe.len() >= sequence_tokens * width, "wpe has a row for each of T positions");
    x.par_chunks_exact_mut(width).zip(tokens).enumerate().for_each(|(row, (x, &token))| {
        let position = row % sequence_tokens;
        let token = token as usize * width;
        let position = position * width;
        let token = &wte[token..token + width];
        let position = &wpe[position..position + width];
        simd::vectorize(
            #[inline(always)]
            || {
                for (x, (&token, &position)) in x.iter_mut().zip(token.iter().zip(position)) {
                    *x = E::narrow(token.widen() + position.widen());
                }
            },
        );
    });
}

/// Adds to `dwte` (V, C) and `dwpe` (at least T, C), if there is one, from `dx` (B, T, C).
///
/// Each row of a table is summed by one task, in the order of the tokens.
///
/// # Panics
/// Panics if a token is not below V, or if lengths do not fit together.
pub fn backward<E: Element>(
    dwte: &mut [E::Wide],
    dwpe: Option<&mut [E::Wide]>,
    dx: &[E],
    tokens: &[u32],
    (sequence_tokens, width): (usize, usize),
) {
    assert_eq!(dx.len(), tokens.len() * width, "dx (B, T, C)");
    let vocabulary = dwte.len() / width;
    assert!(tokens.iter().all(|&token| (token as usize) < vocabulary), "tokens below V");
    let part_rows = vocabulary.div_ceil(TABLE_PARTS);
    dwte.par_chunks_mut(part_rows * width).enumerate().for_each(|(part, dwte)| {
        let first = part * part_rows;
        let rows = first..first + dwte.len() / width;
        for (&token, dx) in tokens.iter().zip(dx.chunks_exact(width)) {
            let token = token as usize;
            if rows.contains(&token) {
                add(&mut dwte[(token - first) * width..][..width], dx);
            }
        }
    });
    let Some(dwpe) = dwpe else { return };
    assert!(dwpe.len() >= sequence_tokens * width, "dwpe has a row for each of T positions");
    let used = &mut dwpe[..sequence_tokens * width];
    used.par_chunks_exact_mut(width).enumerate().for_each(|(position, dwpe)| {
        for dx in dx.chunks_exact(width).skip(position).step_by(sequence_tokens) {
            add(dwpe, dx);
        }
    });
}

fn add<E: Element>(y: &mut [E::Wide], x: &[E]) {
    simd::vectorize(
        #[inline(always)]
        || y.iter_mut().zip(x).for_each(|(y, &x)| *y += x.widen()),
    );
}

#[cfg(test)]
mod tests {
    use super::{backward, forward};
    use crate::ops::testing::{check_gradient, inner, uniform};

    const TOKENS: [u32; 10] = [3, 0, 3, 69, 7, 3, 69, 68, 1, 0];
    const SHAPE: (usize, usize) = (5, 6);

    #[test]
    fn forward_adds_token_and_position() {
        let wte: Vec<f64> = uniform(70 * 6, 1);
        let wpe: Vec<f64> = uniform(8 * 6, 2);
        let mut x = vec![0.0; 10 * 6];
        forward(&mut x, &TOKENS, (&wte, Some(&wpe)), SHAPE);
        for (row, &token) in TOKENS.iter().enumerate() {
            for c in 0..6 {
                let exact = wte[token as usize * 6 + c] + wpe[row % 5 * 6 + c];
                assert_eq!(x[row * 6 + c], exact);
            }
        }
    }

    #[test]
    fn backward_agrees_with_finite_differences() {
        let wte: Vec<f64> = uniform(70 * 6, 1);
        let wpe: Vec<f64> = uniform(8 * 6, 2);
        let dx: Vec<f64> = uniform(10 * 6, 3);
        let loss = |wte: &[f64], wpe: &[f64]| {
            let mut x = vec![0.0; 10 * 6];
            forward(&mut x, &TOKENS, (wte, Some(wpe)), SHAPE);
            inner(&x, &dx)
        };
        let mut dwte = vec![0.0; wte.len()];
        let mut dwpe = vec![0.0; wpe.len()];
        backward(&mut dwte, Some(&mut dwpe), &dx, &TOKENS, SHAPE);
        check_gradient("wte", &wte, &dwte, |wte| loss(wte, &wpe));
        check_gradient("wpe", &wpe, &dwpe, |wpe| loss(&wte, wpe));
        let once = dwte.clone();
        backward(&mut dwte, Some(&mut dwpe), &dx, &TOKENS, SHAPE);
        assert!(dwte.iter().zip(&once).all(|(a, b)| (a - 2.0 * b).abs() < 1e-12), "accumulates");
    }
}
