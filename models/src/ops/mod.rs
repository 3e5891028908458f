//! Ops: functions over slices, one op per folder; `mod.rs` has the formula, `cpu.rs` the code.
//!
//! The caller provides outputs and workspaces. No op allocates, locks or synchronises. Work is
//! divided over the rayon pool that the caller is in, and every sum has a fixed order, whatever the
//! number of threads: results have the same bits on any pool.
//!
//! Ops are generic over [`Element`]: f32 and bf16 train, f64 checks gradients by finite
//! differences. The sums of squares and AdamW, which the trainer calls, are not, so that they are
//! compiled once, with this crate.
//!
//! To add one:
//!
//! 1. A folder here: `mod.rs` has the formula of forward and backward with its source, shapes by
//!    letter, and the exports; `cpu.rs` the code, generic over [`Element`].
//! 2. Tests in `cpu.rs` (or `tests.rs` next to it), with `testing`: gradients against finite
//!    differences in f64 (`check_gradient`), the same bits on 1 and 3 threads (`on_threads`), and
//!    the rounding of bf16 (`relative_error`). `models/src/candle/tests/` compares the op with the
//!    reference engine, which needs it too (`models/src/candle/`).
//! 3. Its FLOPs and bytes in [`work`], checked by hand there, for `--profile-step`. Where it has
//!    matrix products, `models/src/flops.rs` counts them for MFU.
//! 4. Its CUDA kernels: `kernel.cu` and `cuda.rs` in its folder, tests in `cuda_tests/`, the source
//!    in the list of `ops/kernels.rs`. `models/src/network/cuda/kernels.rs` loads them.
//! 5. Its settings, if it has any: keys of the configuration in `models/src/config/`. Dimensions
//!    that follow from them are in `models/src/network/size.rs`.
//! 6. Its weights, if it has any: tensors in `models/src/layout/build.rs`, their ranges in
//!    `models/src/network/parameter_ranges.rs`, their names in Hugging Face's files in
//!    `trainer/src/hugging_face/tensor_mapping.rs`.
//! 7. A method of the trait `Ops` (`models/src/network/ops.rs`), and what it calls on the host
//!    (`host/mod.rs`) and on CUDA (`cuda/mod.rs`).
//! 8. The call in the network, `models/src/network/block.rs` or `mod.rs`, inside `Metered::time`
//!    with a role and a kind of `models/src/meter/mod.rs`. Activations that backward needs are
//!    allocated in `models/src/network/activations.rs`, other memory in `scratch.rs`, workspaces of
//!    an op by the set that needs them. Ops of the update are called in `trainer/src/step/`.

pub mod adamw;
mod affine;
pub mod attention;
pub mod cross_entropy;
#[cfg(test)]
mod cuda_tests;
pub mod embedding;
mod float;
pub mod gelu;
pub mod gradient_norm;
pub mod gradient_sum;
pub(crate) mod kernels;
pub mod layer_norm;
pub mod matmul;
pub(crate) mod norm;
pub mod rms_norm;
pub mod rope;
pub(crate) mod row_sums;
pub(crate) mod simd;
pub mod step;
pub mod swiglu;
#[cfg(test)]
pub(crate) mod testing;
pub mod update_norm;
pub mod work;

pub(crate) use affine::{Affine, AffineMut};
pub use float::{Element, Float};
pub use row_sums::RowSums;

use rayon::prelude::*;

/// Elements per task of an element-wise op: 64 KiB of f32.
const ELEMENT_CHUNK: usize = 16_384;
/// Rows per task of an op over rows.
const ROW_CHUNK: usize = 16;
/// Columns per task of a sum over rows: four cache lines of f32.
const COLUMN_CHUNK: usize = 64;

/// Sets every element to zero.
pub fn clear<E: Element>(values: &mut [E]) {
    values.par_chunks_mut(ELEMENT_CHUNK).for_each(|values| values.fill(E::ZERO));
}

#[cfg(test)]
mod tests {
    #[test]
    fn clearing_reaches_the_last_element() {
        let mut values = vec![1f32; 2 * super::ELEMENT_CHUNK + 1];
        super::clear(&mut values);
        assert!(values.iter().all(|value| value.to_bits() == 0));
    }
}
