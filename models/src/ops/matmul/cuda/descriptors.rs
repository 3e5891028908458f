//! cuBLASLt's descriptors, each destroyed with its owner.
#![allow(unsafe_code)] // calls cuBLASLt

use std::ffi::c_int;
use std::ptr;

use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t,
    cudaDataType,
};
use device::cuda::cublaslt::{CublasLt, Refusal};

/// The library's state.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) pointer: cublasLtHandle_t,
    pub(super) library: &'static CublasLt,
}

/// Descriptor of the computation: types, transposes, epilogue.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) pointer: cublasLtMatmulDesc_t,
    library: &'static CublasLt,
}

/// Descriptor of a matrix's layout.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) pointer: cublasLtMatrixLayout_t,
    library: &'static CublasLt,
}

/// Descriptor of the limits of an algorithm.
#[derive(Debug)]
pub(super) struct Preference {
    pub(super) pointer: cublasLtMatmulPreference_t,
    library: &'static CublasLt,
}

// SAFETY: the library's functions may be called from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above; each of the following is used by its owner alone.
unsafe impl Send for Operation {}
// SAFETY: as above.
unsafe impl Send for Layout {}

impl Handle {
    pub(super) fn new(library: &'static CublasLt) -> Result<Self, Refusal> {
        let mut pointer = ptr::null_mut();
        // SAFETY: it writes one pointer.
        library.check(unsafe { (library.cublasLtCreate)(&raw mut pointer) })?;
        Ok(Self { pointer, library })
    }
}

impl Operation {
    /// Creates a descriptor with sums and factors in f32.
    pub(super) fn new(library: &'static CublasLt) -> Result<Self, Refusal> {
        let compute = cublasComputeType_t::CUBLAS_COMPUTE_32F as c_int;
        let scale = cudaDataType::CUDA_R_32F as c_int;
        let mut pointer = ptr::null_mut();
        // SAFETY: it writes one pointer.
        let status =
            unsafe { (library.cublasLtMatmulDescCreate)(&raw mut pointer, compute, scale) };
        library.check(status)?;
        Ok(Self { pointer, library })
    }

    /// Sets an attribute of type `T`.
    ///
    /// # Safety
    /// `T` is the type of the attribute.
    pub(super) unsafe fn set<T>(
        &self,
        attribute: cublasLtMatmulDescAttributes_t,
        value: T,
    ) -> Result<(), Refusal> {
        let set = self.library.cublasLtMatmulDescSetAttribute;
        let value = (&raw const value).cast();
        // SAFETY: as this function; the value is copied.
        self.library.check(unsafe { set(self.pointer, attribute as c_int, value, size_of::<T>()) })
    }
}

impl Layout {
    /// Columns of `rows` elements, `stride` elements apart.
    pub(super) fn new(
        library: &'static CublasLt,
        element: cudaDataType,
        rows: usize,
        columns: usize,
        stride: usize,
    ) -> Result<Self, Refusal> {
        let create = library.cublasLtMatrixLayoutCreate;
        let [rows, columns] = [rows, columns].map(|count| count as u64);
        let mut pointer = ptr::null_mut();
        // SAFETY: it writes one pointer.
        let status =
            unsafe { create(&raw mut pointer, element as c_int, rows, columns, stride as i64) };
        library.check(status)?;
        Ok(Self { pointer, library })
    }
}

impl Preference {
    pub(super) fn new(library: &'static CublasLt) -> Result<Self, Refusal> {
        let mut pointer = ptr::null_mut();
        // SAFETY: it writes one pointer.
        library.check(unsafe { (library.cublasLtMatmulPreferenceCreate)(&raw mut pointer) })?;
        Ok(Self { pointer, library })
    }

    /// Sets an attribute of type `T`.
    ///
    /// # Safety
    /// `T` is the type of the attribute.
    pub(super) unsafe fn set<T>(
        &self,
        attribute: cublasLtMatmulPreferenceAttributes_t,
        value: T,
    ) -> Result<(), Refusal> {
        let set = self.library.cublasLtMatmulPreferenceSetAttribute;
        let value = (&raw const value).cast();
        // SAFETY: as this function; the value is copied.
        self.library.check(unsafe { set(self.pointer, attribute as c_int, value, size_of::<T>()) })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this owns it.
        let _ = unsafe { (self.library.cublasLtDestroy)(self.pointer) };
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: this owns it.
        let _ = unsafe { (self.library.cublasLtMatmulDescDestroy)(self.pointer) };
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: this owns it.
        let _ = unsafe { (self.library.cublasLtMatrixLayoutDestroy)(self.pointer) };
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: this owns it.
        let _ = unsafe { (self.library.cublasLtMatmulPreferenceDestroy)(self.pointer) };
    }
}
