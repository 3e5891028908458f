//! Residual connection: y = a + b. Its gradient goes to both unchanged: other ops' backward adds to
//! it in place.

mod cpu;

pub use cpu::forward;
