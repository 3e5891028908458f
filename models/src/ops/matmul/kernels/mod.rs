//! Micro-kernels of every instruction set, and the selection of those that this processor has.
//!
//! The kernels for AVX-512 (f32 and bf16) and AMX (bf16) are our own; all others are from the
//! `gemm` crate.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod detect;
mod gemm;

pub(in crate::ops) use detect::{best, full_speed};
#[cfg(test)]
pub(in crate::ops) use detect::{double, pairs, singles};

/// Returns whether this thread has released the registers that a kernel configures.
#[cfg(test)]
pub(in crate::ops) fn is_released() -> bool {
    #[cfg(target_arch = "x86_64")]
    return amx::is_released();
    #[cfg(not(target_arch = "x86_64"))]
    true
}
