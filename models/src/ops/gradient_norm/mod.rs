//! The norm of a gradient, and whether it is finite.
//!
//! The sum of squares is taken in f64 over a tree whose shape depends on the length alone, so it
//! has the same bits for any number of threads and any timing. An f32 squared cannot overflow an
//! f64: the sum is finite exactly when every element is.

mod cpu;

pub use cpu::{first_non_finite, sum_of_squares};
