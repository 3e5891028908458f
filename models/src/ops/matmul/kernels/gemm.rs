//! The micro-kernels of the `gemm` crate, whose driver is not used because it allocates packing
//! buffers on nearly every call.

#![allow(unsafe_code)]

use gemm_common::microkernel::MicroKernelFn;

use crate::ops::Float;
use crate::ops::matmul::tile::{Kernel, Left, Target, TileShape};

/// The kernel of an instruction set for a type, and its number of lanes.
macro_rules! kernel {
    ($library:ident, $set:ident, $float:ident, $lanes:literal) => {{
        use $library::microkernel::$set::$float::{MR_DIV_N, NR, UKR};
        /// By vectors and rows, each less one.
        static FUNCTIONS: [[MicroKernelFn<$float>; NR]; MR_DIV_N] = UKR;

        /// # Safety
        /// See [`Kernel::multiply`].
        unsafe fn multiply(
            target: Target<$float>,
            shape: TileShape,
            left: Left<$float>,
            right: *const $float,
        ) {
            let function = FUNCTIONS[shape.vectors - 1][shape.rows - 1];
            // SAFETY: as this function.
            unsafe { call::<$float, $lanes>(function, target, shape, left, right) }
        }

        Kernel::broadcasting(stringify!($set), $lanes, MR_DIV_N, NR, multiply)
    }};
}

/// Kernels for f32 that this processor has, best first.
pub(super) fn singles() -> Vec<Kernel<f32>> {
    let mut kernels = Vec::new();
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("fma") {
        kernels.push(kernel!(gemm_f32, fma, f32, 8));
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("neon") {
        kernels.push(kernel!(gemm_f32, neon, f32, 4));
    }
    kernels.push(kernel!(gemm_f32, scalar, f32, 1));
    kernels
}

/// The best kernel for f64.
pub(super) fn double() -> Kernel<f64> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        return kernel!(gemm_f64, avx512f, f64, 8);
    } else if is_x86_feature_detected!("fma") {
        return kernel!(gemm_f64, fma, f64, 4);
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("neon") {
        return kernel!(gemm_f64, neon, f64, 2);
    }
    kernel!(gemm_f64, scalar, f64, 1)
}

/// Calls a function of `gemm`, which counts rows and columns the other way round: its columns are
/// our rows.
///
/// # Safety
/// See [`Kernel::multiply`], for a function of this shape that the processor has.
unsafe fn call<W: Float, const LANES: usize>(
    function: MicroKernelFn<W>,
    target: Target<W>,
    shape: TileShape,
    left: Left<W>,
    right: *const W,
) {
    let width = shape.vectors * LANES;
    let stride = |bytes: usize| (bytes / size_of::<W>()) as isize;
    let (old_factor, old_status) = if target.accumulate { (W::ONE, 1) } else { (W::ZERO, 0) };
    // SAFETY: as this function.
    unsafe {
        function(
            width,
            shape.rows,
            shape.steps,
            target.start,
            right,
            left.start,
            target.row_stride as isize,
            1,
            width as isize,
            stride(left.step_bytes),
            stride(left.row_bytes),
            old_factor,
            W::ONE,
            old_status,
            false,
            false,
            false,
            std::ptr::null(),
        );
    }
}
