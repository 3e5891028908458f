//! RoPE (Su et al., arXiv 2104.09864): queries and keys rotated by angles that grow with position.
//!
//! Elements i and i + D / 2 of a head make a pair ("rotate half", as in Hugging Face's weights). At
//! position t, with the angle a = t a_i:
//!
//! (x, y) becomes (x cos a - y sin a, y cos a + x sin a); backward rotates by -a.
//!
//! The angles a_i per token, with Llama 3.1's stretching, are
//! [`Llama::angles_per_token`](crate::config::Llama::angles_per_token).

mod cpu;
pub(crate) mod cuda;

pub use cpu::{backward, forward};

use device::{Allocator, DeviceBuffer};

use crate::ops::Float;

/// Cosine and sine of every angle, each (T, D / 2), planned once.
#[derive(Debug)]
pub struct Tables<W: Float> {
    cosine: DeviceBuffer<W>,
    sine: DeviceBuffer<W>,
    /// D / 2.
    pairs: usize,
}

impl<W: Float> Tables<W> {
    /// Computes tables for positions 0 to T - 1 in f64, from the angle of each pair per token.
    ///
    /// # Panics
    /// Panics if there is no pair or no token.
    pub fn new(allocator: &Allocator, angles_per_token: &[f64], tokens: usize) -> Self {
        let pairs = angles_per_token.len();
        assert!(pairs > 0 && tokens > 0, "tables of {pairs} pairs for {tokens} tokens");
        let of = |function: fn(f64) -> f64| {
            allocator.zeros(tokens * pairs).filled(|table| {
                for (position, row) in table.chunks_exact_mut(pairs).enumerate() {
                    for (value, angle) in row.iter_mut().zip(angles_per_token) {
                        *value = W::from_f64(function(position as f64 * angle));
                    }
                }
            })
        };
        Self { cosine: of(f64::cos), sine: of(f64::sin), pairs }
    }
}

/// Columns of a row that are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// (H + 2 K) D, elements of one row.
    pub columns: usize,
    /// H + K: the heads that are rotated, from the start of the row.
    pub heads: usize,
}

/// Direction of the rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// By the angles.
    Forward,
    /// Back again: the gradient of the input from that of the output.
    Backward,
}
