//! cuBLASLt's descriptors, each destroyed with its owner.
#![allow(unsafe_code)] // calls cuBLASLt

use std::ffi::c_void;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t,
    cudaDataType,
};

/// The library's state.
#[derive(Debug)]
pub(super) struct Handle(pub(super) cublasLtHandle_t);

/// Descriptor of the computation: types, transposes, epilogue.
#[derive(Debug)]
pub(super) struct Operation(pub(super) cublasLtMatmulDesc_t);

/// Descriptor of a matrix's layout.
#[derive(Debug)]
pub(super) struct Layout(pub(super) cublasLtMatrixLayout_t);

/// Descriptor of the limits of an algorithm.
#[derive(Debug)]
pub(super) struct Preference(pub(super) cublasLtMatmulPreference_t);

// SAFETY: the library's functions may be called from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above; each of the following is used by its owner alone.
unsafe impl Send for Operation {}
// SAFETY: as above.
unsafe impl Send for Layout {}

impl Handle {
    pub(super) fn new() -> Result<Self, CublasError> {
        Ok(Self(result::create_handle()?))
    }
}

impl Operation {
    /// Creates a descriptor with sums and factors in f32.
    pub(super) fn new() -> Result<Self, CublasError> {
        let compute = cublasComputeType_t::CUBLAS_COMPUTE_32F;
        Ok(Self(result::create_matmul_desc(compute, cudaDataType::CUDA_R_32F)?))
    }

    /// Sets an attribute of type `T`.
    ///
    /// # Safety
    /// `T` is the type of the attribute.
    pub(super) unsafe fn set<T>(
        &self,
        attribute: cublasLtMatmulDescAttributes_t,
        value: T,
    ) -> Result<(), CublasError> {
        let value: *const T = &raw const value;
        // SAFETY: as this function; the value is copied.
        unsafe {
            result::set_matmul_desc_attribute(self.0, attribute, value.cast(), size_of::<T>())
        }
    }
}

impl Layout {
    /// Columns of `rows` elements, `stride` elements apart.
    pub(super) fn new(
        element: cudaDataType,
        rows: usize,
        columns: usize,
        stride: usize,
    ) -> Result<Self, CublasError> {
        let layout =
            result::create_matrix_layout(element, rows as u64, columns as u64, stride as i64)?;
        Ok(Self(layout))
    }
}

impl Preference {
    pub(super) fn new() -> Result<Self, CublasError> {
        Ok(Self(result::create_matmul_pref()?))
    }

    /// Sets an attribute of type `T`.
    ///
    /// # Safety
    /// `T` is the type of the attribute.
    pub(super) unsafe fn set<T>(
        &self,
        attribute: cublasLtMatmulPreferenceAttributes_t,
        value: T,
    ) -> Result<(), CublasError> {
        let value: *const c_void = (&raw const value).cast();
        // SAFETY: as this function; the value is copied.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, value, size_of::<T>()) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this owns it.
        let _ = unsafe { result::destroy_handle(self.0) };
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: this owns it.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: this owns it.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: this owns it.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}
