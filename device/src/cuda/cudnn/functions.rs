//! cuDNN's functions, looked up in the library that was found.
#![allow(unsafe_code)] // looks functions up

use std::ffi::{CStr, c_char, c_int, c_void};

use super::Refusal;
use crate::cuda::{Error, Libraries, Required};

/// `cudnnBackendDescriptor_t` and `cudnnHandle_t`.
pub(super) type Pointer = *mut c_void;
/// `cudnnStatus_t`: 0 is success.
pub(super) type Status = c_int;

/// The functions that are called.
#[derive(Debug, Clone, Copy)]
pub(super) struct Functions {
    pub(super) create_descriptor: unsafe extern "C" fn(c_int, *mut Pointer) -> Status,
    pub(super) destroy_descriptor: unsafe extern "C" fn(Pointer) -> Status,
    pub(super) set_attribute:
        unsafe extern "C" fn(Pointer, c_int, c_int, i64, *const c_void) -> Status,
    pub(super) get_attribute:
        unsafe extern "C" fn(Pointer, c_int, c_int, i64, *mut i64, *mut c_void) -> Status,
    pub(super) finalize: unsafe extern "C" fn(Pointer) -> Status,
    pub(super) execute: unsafe extern "C" fn(Pointer, Pointer, Pointer) -> Status,
    pub(super) create: unsafe extern "C" fn(*mut Pointer) -> Status,
    pub(super) destroy: unsafe extern "C" fn(Pointer) -> Status,
    pub(super) set_stream: unsafe extern "C" fn(Pointer, *mut c_void) -> Status,
    get_error_string: unsafe extern "C" fn(Status) -> *const c_char,
    get_last_error_string: unsafe extern "C" fn(*mut c_char, usize),
}

/// cuDNN, open for the life of the process.
#[derive(Debug, Clone, Copy)]
pub struct Cudnn {
    pub(super) functions: Functions,
}

impl Cudnn {
    /// Opens cuDNN, unless it is open. Needs no driver: plans are made without a device too.
    ///
    /// # Errors
    /// Fails if it is missing, or older than the version that this program was written for.
    pub fn open() -> Result<Self, Error> {
        let required = Required { cudnn: true, ..Required::NONE };
        let libraries = Libraries::open(&required)?;
        let library = libraries.cudnn().unwrap_or_else(|| unreachable!("it was required"));
        // SAFETY: each field has the type that `cudnn_graph.h` gives the function of this name.
        let functions = unsafe {
            Functions {
                create_descriptor: library.function("cudnnBackendCreateDescriptor")?,
                destroy_descriptor: library.function("cudnnBackendDestroyDescriptor")?,
                set_attribute: library.function("cudnnBackendSetAttribute")?,
                get_attribute: library.function("cudnnBackendGetAttribute")?,
                finalize: library.function("cudnnBackendFinalize")?,
                execute: library.function("cudnnBackendExecute")?,
                create: library.function("cudnnCreate")?,
                destroy: library.function("cudnnDestroy")?,
                set_stream: library.function("cudnnSetStream")?,
                get_error_string: library.function("cudnnGetErrorString")?,
                get_last_error_string: library.function("cudnnGetLastErrorString")?,
            }
        };
        Ok(Self { functions })
    }

    /// Fails with cuDNN's text for a status other than success.
    pub(super) fn check(self, call: &'static str, status: Status) -> Result<(), Refusal> {
        if status == 0 {
            return Ok(());
        }
        Err(Refusal { call, status, text: self.text(status) })
    }

    /// cuDNN's text for a status, and for the last error of this thread.
    fn text(self, status: Status) -> String {
        let mut message = [0_u8; 512];
        // SAFETY: the first accepts every number and returns a text that ends with a zero; the
        // second writes at most so many bytes, with a zero at their end.
        let name = unsafe {
            let length = message.len();
            (self.functions.get_last_error_string)(message.as_mut_ptr().cast(), length);
            CStr::from_ptr((self.functions.get_error_string)(status))
        };
        let name = name.to_string_lossy();
        let last = CStr::from_bytes_until_nul(&message).unwrap_or_default().to_string_lossy();
        match last.trim() {
            "" => name.into_owned(),
            last => format!("{name} ({last})"),
        }
    }
}
