//! Micro-kernels: the innermost loop of a matmul, one tile of the output in registers.
//!
//! They are those of the `gemm` crate. Its own driver allocates packing buffers on every call, so
//! the driver here is ours and works in buffers of the caller.

use std::sync::LazyLock;

use gemm_common::microkernel::MicroKernelFn;

/// Micro-kernels of one instruction set.
///
/// A tile has up to `vectors` vectors of `lanes` elements along contiguous output columns, times up
/// to `rows` output rows.
#[derive(Debug)]
pub struct Kernel<T: 'static> {
    /// Name of the instruction set, as in `avx512f`.
    pub(super) name: &'static str,
    pub(super) lanes: usize,
    pub(super) vectors: usize,
    pub(super) rows: usize,
    functions: &'static [&'static [MicroKernelFn<T>]],
}

impl<T> Kernel<T> {
    /// Columns of a full tile.
    pub(super) fn panel(&self) -> usize {
        self.lanes * self.vectors
    }

    /// The kernel for a tile of this many vectors and rows, each at least 1.
    pub(super) fn function(&self, vectors: usize, rows: usize) -> MicroKernelFn<T> {
        self.functions[vectors - 1][rows - 1]
    }
}

macro_rules! kernel {
    ($library:ident, $set:ident, $float:ident, $lanes:literal, [$($vectors:literal),*]) => {{
        use $library::microkernel::$set::$float::{MR_DIV_N, NR, UKR};
        static FUNCTIONS: [[MicroKernelFn<$float>; NR]; MR_DIV_N] = UKR;
        static ROWS: [&[MicroKernelFn<$float>]; MR_DIV_N] = [$(&FUNCTIONS[$vectors]),*];
        let name = stringify!($set);
        Kernel { name, lanes: $lanes, vectors: MR_DIV_N, rows: NR, functions: &ROWS }
    }};
}

/// Instruction set of the fastest kernels for this architecture.
pub(super) const BEST: &str = if cfg!(target_arch = "x86_64") {
    "avx512f"
} else if cfg!(target_arch = "aarch64") {
    "neon"
} else {
    "scalar"
};

/// Kernels for f32.
pub(in crate::ops) fn single() -> &'static Kernel<f32> {
    static KERNEL: LazyLock<Kernel<f32>> = LazyLock::new(detect_single);
    &KERNEL
}

/// Kernels for f64.
pub(in crate::ops) fn double() -> &'static Kernel<f64> {
    static KERNEL: LazyLock<Kernel<f64>> = LazyLock::new(detect_double);
    &KERNEL
}

#[cfg(target_arch = "x86_64")]
fn detect_single() -> Kernel<f32> {
    if is_x86_feature_detected!("avx512f") {
        kernel!(gemm_f32, avx512f, f32, 16, [0, 1, 2, 3])
    } else if is_x86_feature_detected!("fma") {
        kernel!(gemm_f32, fma, f32, 8, [0, 1])
    } else {
        kernel!(gemm_f32, scalar, f32, 1, [0, 1])
    }
}

#[cfg(target_arch = "x86_64")]
fn detect_double() -> Kernel<f64> {
    if is_x86_feature_detected!("avx512f") {
        kernel!(gemm_f64, avx512f, f64, 8, [0, 1, 2, 3])
    } else if is_x86_feature_detected!("fma") {
        kernel!(gemm_f64, fma, f64, 4, [0, 1])
    } else {
        kernel!(gemm_f64, scalar, f64, 1, [0, 1])
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect_single() -> Kernel<f32> {
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("neon") {
        return kernel!(gemm_f32, neon, f32, 4, [0, 1, 2, 3]);
    }
    kernel!(gemm_f32, scalar, f32, 1, [0, 1])
}

#[cfg(not(target_arch = "x86_64"))]
fn detect_double() -> Kernel<f64> {
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("neon") {
        return kernel!(gemm_f64, neon, f64, 2, [0, 1, 2, 3]);
    }
    kernel!(gemm_f64, scalar, f64, 1, [0, 1])
}

#[cfg(test)]
mod tests {
    use super::{BEST, double, single};
    use crate::ops::matmul::{is_fallback, kernel_name};

    #[test]
    fn the_name_is_that_of_the_kernels_in_use() {
        assert_eq!(kernel_name(), single().name);
        assert_eq!(kernel_name(), double().name, "one instruction set for both elements");
        // The lanes are what the driver relies on; the name must not say anything else.
        let lanes = match kernel_name() {
            "avx512f" => 16,
            "fma" => 8,
            "neon" => 4,
            "scalar" => 1,
            other => panic!("unknown instruction set {other}"),
        };
        assert_eq!(single().lanes, lanes);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_processor_without_the_best_instructions_falls_back() {
        assert_eq!(BEST, "avx512f");
        assert_eq!(is_fallback(), !is_x86_feature_detected!("avx512f"));
    }
}
