//! The driver's functions and statuses.
#![allow(unsafe_code)] // calls the driver

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmodule, CUstream,
};

use super::error::DriverStatus;
use super::function_table::function_table;

/// `CUresult`. A newer driver may return a number that its header did not have before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
#[must_use]
pub(super) struct Status(pub(super) c_int);

impl Status {
    pub(super) const SUCCESS: Self = Self(0);
}

function_table! {
    /// The functions that are called. All of them exist since CUDA 12.0: `cuEventElapsedTime_v2`,
    /// for one, does not.
    pub(super) struct Driver {
        fn cuCtxGetCurrent(*mut CUcontext) -> Status;
        fn cuCtxSetCurrent(CUcontext) -> Status;
        fn cuDeviceGet(*mut CUdevice, c_int) -> Status;
        fn cuDeviceGetAttribute(*mut c_int, c_int, CUdevice) -> Status;
        fn cuDeviceGetCount(*mut c_int) -> Status;
        fn cuDeviceGetName(*mut c_char, c_int, CUdevice) -> Status;
        fn cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice) -> Status;
        fn cuDevicePrimaryCtxRelease_v2(CUdevice) -> Status;
        fn cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice) -> Status;
        fn cuDeviceTotalMem_v2(*mut usize, CUdevice) -> Status;
        fn cuEventCreate(*mut CUevent, c_uint) -> Status;
        fn cuEventDestroy_v2(CUevent) -> Status;
        fn cuEventElapsedTime(*mut f32, CUevent, CUevent) -> Status;
        fn cuEventQuery(CUevent) -> Status;
        fn cuEventRecord(CUevent, CUstream) -> Status;
        fn cuEventSynchronize(CUevent) -> Status;
        fn cuFuncSetAttribute(CUfunction, c_int, c_int) -> Status;
        fn cuGetErrorName(Status, *mut *const c_char) -> Status;
        fn cuGetErrorString(Status, *mut *const c_char) -> Status;
        fn cuInit(c_uint) -> Status;
        fn cuLaunchKernel(
            CUfunction,
            c_uint, c_uint, c_uint,
            c_uint, c_uint, c_uint,
            c_uint,
            CUstream,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> Status;
        fn cuMemAlloc_v2(*mut CUdeviceptr, usize) -> Status;
        fn cuMemFreeHost(*mut c_void) -> Status;
        fn cuMemFree_v2(CUdeviceptr) -> Status;
        fn cuMemGetInfo_v2(*mut usize, *mut usize) -> Status;
        fn cuMemHostAlloc(*mut *mut c_void, usize, c_uint) -> Status;
        fn cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream) -> Status;
        fn cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream) -> Status;
        fn cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream) -> Status;
        fn cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream) -> Status;
        fn cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char) -> Status;
        fn cuModuleLoadData(*mut CUmodule, *const c_void) -> Status;
        fn cuModuleUnload(CUmodule) -> Status;
        fn cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int) -> Status;
        fn cuStreamDestroy_v2(CUstream) -> Status;
        fn cuStreamSynchronize(CUstream) -> Status;
        fn cuStreamWaitEvent(CUstream, CUevent, c_uint) -> Status;
    }
}

impl Driver {
    /// Fails with the driver's description of a status other than success.
    pub(super) fn check(&self, status: Status) -> Result<(), DriverStatus> {
        if status == Status::SUCCESS {
            return Ok(());
        }
        let name = text(self.cuGetErrorName, status);
        let meaning = text(self.cuGetErrorString, status);
        Err(DriverStatus {
            number: status.0,
            name: name.unwrap_or_else(|| format!("CUDA error {}", status.0)),
            meaning: meaning.unwrap_or_else(|| "unknown to the driver".to_owned()),
        })
    }
}

/// Text for a status, unless the driver does not know it.
fn text(
    get: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
    status: Status,
) -> Option<String> {
    let mut text = ptr::null();
    // SAFETY: it accepts every number, and writes one pointer.
    let found = unsafe { get(status, &raw mut text) };
    if found != Status::SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: a text of the driver, which ends with a zero and is never changed.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use crate::cuda::Libraries;

    #[test]
    fn a_status_has_the_driver_s_name_and_an_unknown_one_its_number() {
        let driver = Libraries::open_driver().unwrap().functions;
        let said = |number| driver.check(Status(number)).unwrap_err();
        assert_eq!(said(2).name, "CUDA_ERROR_OUT_OF_MEMORY");
        assert_eq!(said(123_456).to_string(), "CUDA error 123456 (unknown to the driver)");
    }
}
