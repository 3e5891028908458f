//! The kernels on a CUDA device, a real one or the emulated one, against the CPU ops.
//!
//! Needs a device: `cargo test --lib cuda_` runs these tests, `--skip cuda_` all others. The
//! expected result of a kernel is that of the CPU op in f64 from the same rounded inputs.

mod attention;
mod cross_entropy;
mod device;
mod embedding;
mod gelu;
mod matmul;
mod norm;
mod rope;
mod row_sums;
mod step;
mod swiglu;
