//! NCCL's functions, with the types of `nccl.h`.
//!
//! Results and element types are plain integers: a later version may return a number that this
//! program does not know.
#![allow(unsafe_code)] // calls NCCL

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::function_table::{FunctionTable, function_table};
use super::{Error, Libraries};

/// Return code of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Status(c_int);

impl Status {
    /// Success.
    pub const SUCCESS: Self = Self(0);
    /// A peer's process has ended, or the network to it failed.
    pub const REMOTE_ERROR: Self = Self(6);
    /// The call is in progress; `ncclCommGetAsyncError` reports when it is over.
    pub const IN_PROGRESS: Self = Self(7);
}

/// `ncclFloat32`.
pub const FLOAT32: c_int = 7;
/// `ncclBfloat16`.
pub const BFLOAT16: c_int = 9;
/// `ncclFloat64`.
pub const FLOAT64: c_int = 8;
/// `ncclUint8`.
pub const UINT8: c_int = 1;
/// `ncclSum`.
pub const SUM: c_int = 0;

/// `ncclComm_t`.
pub type Handle = *mut c_void;

/// Id by which ranks find each other.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct UniqueId(pub [u8; UniqueId::BYTES]);

impl UniqueId {
    /// Its size.
    pub const BYTES: usize = 128;
}

/// `ncclConfig_t` as of NCCL 2.17. A later library accepts it, because it contains its size and
/// version, and sets the rest to its defaults.
#[derive(Debug)]
#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    ctas_min: c_int,
    ctas_max: c_int,
    network: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Configuration in which no call blocks; everything else is NCCL's choice.
    pub fn non_blocking() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21_700,
            blocking: 0,
            cga_cluster_size: c_int::MIN,
            ctas_min: c_int::MIN,
            ctas_max: c_int::MIN,
            network: std::ptr::null(),
            split_share: c_int::MIN,
        }
    }
}

function_table! {
    /// The functions that are called.
    pub struct Nccl {
        fn ncclAllGather(
            *const c_void,
            *mut c_void,
            usize,
            c_int,
            Handle,
            *mut c_void,
        ) -> Status;
        fn ncclAllReduce(
            *const c_void,
            *mut c_void,
            usize,
            c_int,
            c_int,
            Handle,
            *mut c_void,
        ) -> Status;
        fn ncclBroadcast(
            *const c_void,
            *mut c_void,
            usize,
            c_int,
            c_int,
            Handle,
            *mut c_void,
        ) -> Status;
        fn ncclCommAbort(Handle) -> Status;
        fn ncclCommDestroy(Handle) -> Status;
        fn ncclCommFinalize(Handle) -> Status;
        fn ncclCommGetAsyncError(Handle, *mut Status) -> Status;
        fn ncclCommInitRankConfig(*mut Handle, c_int, UniqueId, c_int, *mut Config) -> Status;
        fn ncclGetErrorString(Status) -> *const c_char;
        fn ncclGetLastError(Handle) -> *const c_char;
        fn ncclGetUniqueId(*mut UniqueId) -> Status;
        fn ncclGetVersion(*mut c_int) -> Status;
        fn ncclGroupEnd() -> Status;
        fn ncclGroupStart() -> Status;
        fn ncclRecv(*mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> Status;
        fn ncclReduceScatter(
            *const c_void,
            *mut c_void,
            usize,
            c_int,
            c_int,
            Handle,
            *mut c_void,
        ) -> Status;
        fn ncclSend(*const c_void, usize, c_int, c_int, Handle, *mut c_void) -> Status;
    }
}

function_table! {
    /// Functions that register buffers, which NCCL has since version 2.19.
    pub struct Registration {
        fn ncclCommDeregister(Handle, *mut c_void) -> Status;
        fn ncclCommRegister(Handle, *mut c_void, usize, *mut *mut c_void) -> Status;
    }
}

impl Registration {
    /// Functions of NCCL, if it is open and has them.
    pub fn find() -> Option<Self> {
        FunctionTable::find(Libraries::of_process().nccl()?).ok()
    }
}

impl Nccl {
    /// Opens NCCL and the driver, unless they are open.
    ///
    /// # Errors
    /// Fails if one of them is missing.
    pub fn open() -> Result<&'static Self, Error> {
        Libraries::open_driver()?;
        Ok(&Libraries::open_nccl()?.functions)
    }

    /// NCCL's text for a status, and for the last error of this thread.
    pub fn text(&self, status: Status) -> String {
        // SAFETY: the first accepts every number, the second no communicator.
        let texts = unsafe {
            [(self.ncclGetErrorString)(status), (self.ncclGetLastError)(std::ptr::null_mut())]
        };
        let texts = texts.map(|text| {
            // SAFETY: texts of the library, which end with a zero.
            let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
            text.unwrap_or_default().to_string_lossy().trim().to_owned()
        });
        match texts {
            [status, last] if last.is_empty() => status,
            [status, last] => format!("{status} ({last})"),
        }
    }
}
