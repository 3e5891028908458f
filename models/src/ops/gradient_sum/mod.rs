//! The sum of gradients over micro-batches whose gradients are reduced one by one: sums += x.

mod cpu;

pub use cpu::add;
