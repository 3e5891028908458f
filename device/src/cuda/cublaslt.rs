//! cuBLASLt's functions and statuses.
#![allow(unsafe_code)] // calls cuBLASLt

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;

use cudarc::cublaslt::sys::{
    cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t, cublasLtMatmulPreference_t,
    cublasLtMatrixLayout_t, cublasStatus_t,
};

use super::function_table::function_table;
use super::{Error, Libraries};

/// `cublasStatus_t`. A later version may return a number that its header did not have before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
#[must_use]
pub struct Status(pub c_int);

impl Status {
    pub(super) const SUCCESS: Self = Self(0);
    /// There is no algorithm.
    pub const NOT_SUPPORTED: Self = Self(cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED as c_int);
    const INVALID_VALUE: Self = Self(cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE as c_int);
    const ARCH_MISMATCH: Self = Self(cublasStatus_t::CUBLAS_STATUS_ARCH_MISMATCH as c_int);

    /// Returns whether this version of the library has no algorithm for this on this device: a
    /// simpler product may be possible.
    pub fn is_refused_plan(self) -> bool {
        self.is_refused_start() || self == Self::INVALID_VALUE
    }

    /// Returns whether this version of the library does not compute on this device what it has an
    /// algorithm for. Where a product starts, an invalid value is this program's.
    pub fn is_refused_start(self) -> bool {
        matches!(self, Self::NOT_SUPPORTED | Self::ARCH_MISMATCH)
    }
}

/// `cublasLtMatmulHeuristicResult_t`, with an integer for its status.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct HeuristicResult {
    /// The algorithm.
    pub algorithm: cublasLtMatmulAlgo_t,
    /// Workspace that it needs.
    pub workspace_bytes: usize,
    /// Status of this result.
    pub state: Status,
    /// Share of the device that it fills.
    pub waves: f32,
    /// Not used by the library.
    pub reserved: [c_int; 4],
}

impl HeuristicResult {
    /// A place for a result.
    pub const EMPTY: Self = Self {
        algorithm: cublasLtMatmulAlgo_t { data: [0; 8] },
        workspace_bytes: 0,
        state: Status::SUCCESS,
        waves: 0.0,
        reserved: [0; 4],
    };
}

function_table! {
    /// The functions that are called.
    pub struct CublasLt {
        fn cublasLtCreate(*mut cublasLtHandle_t) -> Status;
        fn cublasLtDestroy(cublasLtHandle_t) -> Status;
        fn cublasLtGetStatusString(Status) -> *const c_char;
        fn cublasLtMatmul(
            cublasLtHandle_t,
            cublasLtMatmulDesc_t,
            *const c_void,
            *const c_void,
            cublasLtMatrixLayout_t,
            *const c_void,
            cublasLtMatrixLayout_t,
            *const c_void,
            *const c_void,
            cublasLtMatrixLayout_t,
            *mut c_void,
            cublasLtMatrixLayout_t,
            *const cublasLtMatmulAlgo_t,
            *mut c_void,
            usize,
            *mut c_void,
        ) -> Status;
        fn cublasLtMatmulAlgoCheck(
            cublasLtHandle_t,
            cublasLtMatmulDesc_t,
            cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t,
            *const cublasLtMatmulAlgo_t,
            *mut HeuristicResult,
        ) -> Status;
        fn cublasLtMatmulAlgoGetHeuristic(
            cublasLtHandle_t,
            cublasLtMatmulDesc_t,
            cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t,
            cublasLtMatmulPreference_t,
            c_int,
            *mut HeuristicResult,
            *mut c_int,
        ) -> Status;
        fn cublasLtMatmulDescCreate(*mut cublasLtMatmulDesc_t, c_int, c_int) -> Status;
        fn cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t) -> Status;
        fn cublasLtMatmulDescSetAttribute(
            cublasLtMatmulDesc_t,
            c_int,
            *const c_void,
            usize,
        ) -> Status;
        fn cublasLtMatmulPreferenceCreate(*mut cublasLtMatmulPreference_t) -> Status;
        fn cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) -> Status;
        fn cublasLtMatmulPreferenceSetAttribute(
            cublasLtMatmulPreference_t,
            c_int,
            *const c_void,
            usize,
        ) -> Status;
        fn cublasLtMatrixLayoutCreate(
            *mut cublasLtMatrixLayout_t,
            c_int,
            u64,
            u64,
            i64,
        ) -> Status;
        fn cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t) -> Status;
    }
}

/// A call that cuBLASLt refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The library's status.
    pub status: Status,
    text: String,
}

impl CublasLt {
    /// Opens cuBLASLt, unless it is open.
    ///
    /// # Errors
    /// Fails if it is missing.
    pub fn open() -> Result<&'static Self, Error> {
        Ok(&Libraries::open_cublaslt()?.functions)
    }

    /// Fails with cuBLASLt's text for a status other than success.
    ///
    /// # Errors
    /// The refusal.
    pub fn check(&self, status: Status) -> Result<(), Refusal> {
        if status == Status::SUCCESS { Ok(()) } else { Err(self.refusal(status)) }
    }

    /// The refusal of a call that returned a status other than success.
    pub fn refusal(&self, status: Status) -> Refusal {
        // SAFETY: it accepts every number, and returns a text of its own.
        let text = unsafe { (self.cublasLtGetStatusString)(status) };
        // SAFETY: it ends with a zero and is never changed.
        let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
        let text = text.unwrap_or_default().to_string_lossy().into_owned();
        Refusal { status, text }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status: Status(number), text } = self;
        write!(formatter, "status {number} ({text})")
    }
}
