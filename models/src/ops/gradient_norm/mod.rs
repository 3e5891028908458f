//! Two sums over elements: that of their squares, for the norm of a gradient, and a weighted sum.
//! Together they are a digest that reveals changed bits.
//!
//! Sums are taken in f64 over a tree whose shape depends on the length alone, so they have the same
//! bits for any number of threads and any timing. An f32 squared cannot overflow an f64: the sum of
//! squares is finite exactly when every element is.
//!
//! The weight of an element is from 1 to 2, by a hash of its position: elements that change places
//! change the sum. The weighted sum is linear, so the sum over ranks of those of their gradients is
//! that of the reduced gradient, but for rounding.

mod cpu;

pub use cpu::{first_non_finite, sums};

/// Sums over elements.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ElementSums {
    /// Sum of w x, where w is from 1 to 2, by the position of x.
    pub weighted: f64,
    /// Sum of the squares.
    pub squares: f64,
}

/// Factor of weights that are integers, to which they are added up.
const WEIGHT_SCALE: f64 = 1.0 / 1024.0;

/// Returns 1024 times the weight of an element at this position: an integer from 1024 to 2047, by
/// Fibonacci hashing (D. E. Knuth, The Art of Computer Programming, volume 3, section 6.4).
#[inline(always)]
fn weight_bits(position: u32) -> i32 {
    (1024 + (position.wrapping_mul(0x9e37_79b1) >> 22)) as i32
}

impl ElementSums {
    /// Returns whether both have the same bits.
    pub fn is_same(self, other: Self) -> bool {
        self.weighted.to_bits() == other.weighted.to_bits()
            && self.squares.to_bits() == other.squares.to_bits()
    }
}

impl std::ops::AddAssign for ElementSums {
    fn add_assign(&mut self, other: Self) {
        self.weighted += other.weighted;
        self.squares += other.squares;
    }
}
