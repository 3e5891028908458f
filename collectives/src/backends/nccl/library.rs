//! NCCL's functions, looked up in the library that was found, with the types of `nccl.h`.
//!
//! Results and element types are plain integers here: a later version may return a number that
//! this program does not know.
#![allow(unsafe_code)] // looks functions up

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use device::cuda::{self, Libraries, Library, Required};

use super::log_settings::LogSettings;

/// Return code of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Status(c_int);

impl Status {
    pub(super) const SUCCESS: Self = Self(0);
    /// A peer's process has ended, or the network to it failed.
    pub(super) const REMOTE_ERROR: Self = Self(6);
    /// The call is in progress; `ncclCommGetAsyncError` reports when it is over.
    pub(super) const IN_PROGRESS: Self = Self(7);
}

pub(super) const FLOAT32: c_int = 7;
pub(super) const FLOAT64: c_int = 8;
pub(super) const UINT8: c_int = 1;
pub(super) const SUM: c_int = 0;

/// `ncclComm_t`.
pub(super) type Handle = *mut c_void;

/// Id by which ranks find each other.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; UniqueId::BYTES]);

impl UniqueId {
    pub(super) const BYTES: usize = 128;
}

/// `ncclConfig_t` as of NCCL 2.17. A later library accepts it, because it contains its size and
/// version, and sets the rest to its defaults.
#[repr(C)]
pub(super) struct Config {
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
    pub(super) fn non_blocking() -> Self {
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

type Reduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_int,
    c_int,
    Handle,
    *mut c_void,
) -> Status;

/// The functions that are called.
#[derive(Debug, Clone, Copy)]
pub(super) struct Functions {
    pub(super) get_version: unsafe extern "C" fn(*mut c_int) -> Status,
    pub(super) get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> Status,
    pub(super) comm_init_rank_config:
        unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int, *mut Config) -> Status,
    pub(super) comm_get_async_error: unsafe extern "C" fn(Handle, *mut Status) -> Status,
    pub(super) comm_abort: unsafe extern "C" fn(Handle) -> Status,
    pub(super) comm_finalize: unsafe extern "C" fn(Handle) -> Status,
    pub(super) comm_destroy: unsafe extern "C" fn(Handle) -> Status,
    /// Present since NCCL 2.19.
    pub(super) registration: Option<Registration>,
    pub(super) all_reduce: Reduce,
    pub(super) reduce_scatter: Reduce,
    pub(super) all_gather: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        Handle,
        *mut c_void,
    ) -> Status,
    get_error_string: unsafe extern "C" fn(Status) -> *const c_char,
    get_last_error: unsafe extern "C" fn(Handle) -> *const c_char,
}

/// NCCL's functions for registering buffers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Registration {
    pub(super) register:
        unsafe extern "C" fn(Handle, *mut c_void, usize, *mut *mut c_void) -> Status,
    pub(super) deregister: unsafe extern "C" fn(Handle, *mut c_void) -> Status,
}

impl Registration {
    fn find(library: &Library) -> Option<Self> {
        // SAFETY: each field has the type that `nccl.h` gives the function of this name.
        unsafe {
            Some(Self {
                register: library.function("ncclCommRegister").ok()?,
                deregister: library.function("ncclCommDeregister").ok()?,
            })
        }
    }
}

impl Functions {
    /// Opens NCCL, unless it is open.
    pub(super) fn open() -> Result<Self, cuda::Error> {
        let required = Required { driver: true, nccl: true, ..Required::NONE };
        let libraries = Libraries::open(&required)?;
        let library = libraries.nccl().expect("it was required");
        // SAFETY: each field has the type that `nccl.h` gives the function of this name.
        unsafe {
            Ok(Self {
                get_version: library.function("ncclGetVersion")?,
                get_unique_id: library.function("ncclGetUniqueId")?,
                comm_init_rank_config: library.function("ncclCommInitRankConfig")?,
                comm_get_async_error: library.function("ncclCommGetAsyncError")?,
                comm_abort: library.function("ncclCommAbort")?,
                comm_finalize: library.function("ncclCommFinalize")?,
                comm_destroy: library.function("ncclCommDestroy")?,
                registration: Registration::find(library),
                all_reduce: library.function("ncclAllReduce")?,
                reduce_scatter: library.function("ncclReduceScatter")?,
                all_gather: library.function("ncclAllGather")?,
                get_error_string: library.function("ncclGetErrorString")?,
                get_last_error: library.function("ncclGetLastError")?,
            })
        }
    }

    /// NCCL's description of a failure, and the file that has more.
    pub(super) fn failure(&self, status: Status) -> String {
        let text = self.text(status);
        match LogSettings::written_file() {
            Some(file) => format!("{text}; NCCL's log is {}", file.display()),
            None => text,
        }
    }

    /// NCCL's text for a status, and for the last error of this thread.
    pub(super) fn text(&self, status: Status) -> String {
        // SAFETY: the first accepts every number, the second no communicator.
        let texts = unsafe {
            [(self.get_error_string)(status), (self.get_last_error)(std::ptr::null_mut())]
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
