//! cuDNN's functions.
#![allow(unsafe_code)] // looks functions up

use std::ffi::{c_char, c_int, c_void};

use super::function_table::function_table;

/// `cudnnBackendDescriptor_t` and `cudnnHandle_t`.
pub(super) type Pointer = *mut c_void;
/// `cudnnStatus_t`: 0 is success.
pub(super) type Status = c_int;

function_table! {
    /// The functions that are called: graphs are built by descriptors alone.
    pub(super) struct CudnnFunctions {
        fn cudnnBackendCreateDescriptor(c_int, *mut Pointer) -> Status;
        fn cudnnBackendDestroyDescriptor(Pointer) -> Status;
        fn cudnnBackendExecute(Pointer, Pointer, Pointer) -> Status;
        fn cudnnBackendFinalize(Pointer) -> Status;
        fn cudnnBackendGetAttribute(
            Pointer,
            c_int,
            c_int,
            i64,
            *mut i64,
            *mut c_void,
        ) -> Status;
        fn cudnnBackendSetAttribute(Pointer, c_int, c_int, i64, *const c_void) -> Status;
        fn cudnnCreate(*mut Pointer) -> Status;
        fn cudnnDestroy(Pointer) -> Status;
        fn cudnnGetErrorString(Status) -> *const c_char;
        fn cudnnGetLastErrorString(*mut c_char, usize);
        fn cudnnSetStream(Pointer, *mut c_void) -> Status;
    }
}
