//! Weights in the format of a computation.

use device::View;
use half::bf16;

/// Working weights in the format that an engine computes in: all of them, flat, or a segment.
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a> {
    /// The master weights themselves.
    F32(View<'a, f32>),
    /// The master weights, rounded.
    Bf16(View<'a, bf16>),
}

impl<'a> Weights<'a> {
    /// Number of elements, padding included.
    pub fn len(self) -> usize {
        match self {
            Self::F32(weights) => weights.len(),
            Self::Bf16(weights) => weights.len(),
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The weights of an engine that computes in f32.
    ///
    /// # Panics
    /// Panics if they are in another format.
    pub fn f32(self) -> View<'a, f32> {
        match self {
            Self::F32(weights) => weights,
            Self::Bf16(_) => panic!("an engine in f32 was given weights in bf16"),
        }
    }

    /// The weights of an engine that computes in bf16.
    ///
    /// # Panics
    /// Panics if they are in another format.
    pub fn bf16(self) -> View<'a, bf16> {
        match self {
            Self::Bf16(weights) => weights,
            Self::F32(_) => panic!("an engine in bf16 was given weights in f32"),
        }
    }
}

impl<'a> From<View<'a, f32>> for Weights<'a> {
    fn from(weights: View<'a, f32>) -> Self {
        Self::F32(weights)
    }
}

impl<'a> From<View<'a, bf16>> for Weights<'a> {
    fn from(weights: View<'a, bf16>) -> Self {
        Self::Bf16(weights)
    }
}
