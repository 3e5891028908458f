//! A device that computes nothing: its driver and its cuBLASLt accept every call. It is for
//! counting the work that a step gives to a device, at any size and without a GPU.
#![allow(unsafe_code)] // the types of the libraries' functions

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::cublaslt::sys::{
    cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t, cublasLtMatmulPreference_t,
    cublasLtMatrixLayout_t,
};
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmodule, CUstream,
};
use record::machine::{ComputeCapability, DeviceProperties};

use super::cublaslt::{CublasLt, HeuristicResult, Status as BlasStatus};
use super::driver::{Driver, Status};

/// Properties of the device: those of an H100 that the shapes of launches depend on, and more
/// memory than any plan needs.
pub(super) fn properties() -> DeviceProperties {
    DeviceProperties {
        ordinal: 0,
        name: "a device that only counts".to_owned(),
        memory_bytes: u64::MAX,
        compute_capability: ComputeCapability { major: 9, minor: 0 },
        multiprocessors: 132,
        pci_bus_id: String::new(),
    }
}

/// Defines functions of a library that do nothing, and return a status of success.
macro_rules! accept {
    ($status:ident: $($function:ident($($argument:ty),*);)*) => {
        $(
            unsafe extern "C" fn $function($(_: $argument),*) -> $status {
                $status::SUCCESS
            }
        )*
    };
}

accept! {
    Status:
    of_context(CUcontext);
    make_context(*mut CUcontext);
    retain_context(*mut CUcontext, CUdevice);
    release_context(CUdevice);
    get_device(*mut CUdevice, c_int);
    get_number(*mut c_int);
    get_attribute(*mut c_int, c_int, CUdevice);
    get_text(*mut c_char, c_int, CUdevice);
    get_memory_of(*mut usize, CUdevice);
    get_memory(*mut usize, *mut usize);
    make_event(*mut CUevent, c_uint);
    of_event(CUevent);
    record_event(CUevent, CUstream);
    set_function(CUfunction, c_int, c_int);
    describe(Status, *mut *const c_char);
    initialize(c_uint);
    launch(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
        *mut *mut c_void, *mut *mut c_void
    );
    free(CUdeviceptr);
    copy(CUdeviceptr, CUdeviceptr, usize, CUstream);
    copy_to_host(*mut c_void, CUdeviceptr, usize, CUstream);
    copy_from_host(CUdeviceptr, *const c_void, usize, CUstream);
    fill(CUdeviceptr, u8, usize, CUstream);
    find_function(*mut CUfunction, CUmodule, *const c_char);
    load_module(*mut CUmodule, *const c_void);
    of_module(CUmodule);
    make_stream(*mut CUstream, c_uint, c_int);
    of_stream(CUstream);
    wait_event(CUstream, CUevent, c_uint);
}

/// Addresses of memory that there is not. All are different, so that wrong views show.
unsafe extern "C" fn allocate(address: *mut CUdeviceptr, bytes: usize) -> Status {
    /// Memory of CUDA starts at multiples of this.
    const ALIGN: usize = 256;
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    let bytes = bytes.next_multiple_of(ALIGN) as u64;
    // SAFETY: the caller's place for an address.
    unsafe { address.write(NEXT.fetch_add(bytes, Ordering::Relaxed)) };
    Status::SUCCESS
}

/// Memory of the host, which the host writes to.
unsafe extern "C" fn allocate_host(start: *mut *mut c_void, bytes: usize, _: c_uint) -> Status {
    // SAFETY: it has no conditions; the caller's place for an address.
    unsafe { start.write(libc::malloc(bytes)) };
    Status::SUCCESS
}

unsafe extern "C" fn free_host(start: *mut c_void) -> Status {
    // SAFETY: `allocate_host` made it.
    unsafe { libc::free(start) };
    Status::SUCCESS
}

unsafe extern "C" fn elapsed_time(elapsed_ms: *mut f32, _: CUevent, _: CUevent) -> Status {
    // SAFETY: the caller's place for a number.
    unsafe { elapsed_ms.write(0.0) };
    Status::SUCCESS
}

/// The driver.
pub(super) static DRIVER: Driver = Driver {
    cuCtxGetCurrent: make_context,
    cuCtxSetCurrent: of_context,
    cuDeviceGet: get_device,
    cuDeviceGetAttribute: get_attribute,
    cuDeviceGetCount: get_number,
    cuDeviceGetName: get_text,
    cuDeviceGetPCIBusId: get_text,
    cuDevicePrimaryCtxRelease_v2: release_context,
    cuDevicePrimaryCtxRetain: retain_context,
    cuDeviceTotalMem_v2: get_memory_of,
    cuEventCreate: make_event,
    cuEventDestroy_v2: of_event,
    cuEventElapsedTime: elapsed_time,
    cuEventQuery: of_event,
    cuEventRecord: record_event,
    cuEventSynchronize: of_event,
    cuFuncSetAttribute: set_function,
    cuGetErrorName: describe,
    cuGetErrorString: describe,
    cuInit: initialize,
    cuLaunchKernel: launch,
    cuMemAlloc_v2: allocate,
    cuMemFreeHost: free_host,
    cuMemFree_v2: free,
    cuMemGetInfo_v2: get_memory,
    cuMemHostAlloc: allocate_host,
    cuMemcpyDtoDAsync_v2: copy,
    cuMemcpyDtoHAsync_v2: copy_to_host,
    cuMemcpyHtoDAsync_v2: copy_from_host,
    cuMemsetD8Async: fill,
    cuModuleGetFunction: find_function,
    cuModuleLoadData: load_module,
    cuModuleUnload: of_module,
    cuStreamCreateWithPriority: make_stream,
    cuStreamDestroy_v2: of_stream,
    cuStreamSynchronize: of_stream,
    cuStreamWaitEvent: wait_event,
};

accept! {
    BlasStatus:
    create(*mut cublasLtHandle_t);
    destroy(cublasLtHandle_t);
    multiply(
        cublasLtHandle_t, cublasLtMatmulDesc_t, *const c_void, *const c_void,
        cublasLtMatrixLayout_t, *const c_void, cublasLtMatrixLayout_t, *const c_void,
        *const c_void, cublasLtMatrixLayout_t, *mut c_void, cublasLtMatrixLayout_t,
        *const cublasLtMatmulAlgo_t, *mut c_void, usize, *mut c_void
    );
    check_algorithm(
        cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
        cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, *const cublasLtMatmulAlgo_t,
        *mut HeuristicResult
    );
    create_operation(*mut cublasLtMatmulDesc_t, c_int, c_int);
    destroy_operation(cublasLtMatmulDesc_t);
    set_operation(cublasLtMatmulDesc_t, c_int, *const c_void, usize);
    create_preference(*mut cublasLtMatmulPreference_t);
    destroy_preference(cublasLtMatmulPreference_t);
    set_preference(cublasLtMatmulPreference_t, c_int, *const c_void, usize);
    create_layout(*mut cublasLtMatrixLayout_t, c_int, u64, u64, i64);
    destroy_layout(cublasLtMatrixLayout_t);
}

unsafe extern "C" fn describe_status(_: BlasStatus) -> *const c_char {
    c"a device that only counts refuses nothing".as_ptr()
}

/// Offers one algorithm for everything.
unsafe extern "C" fn offer(
    _: cublasLtHandle_t,
    _: cublasLtMatmulDesc_t,
    _: cublasLtMatrixLayout_t,
    _: cublasLtMatrixLayout_t,
    _: cublasLtMatrixLayout_t,
    _: cublasLtMatrixLayout_t,
    _: cublasLtMatmulPreference_t,
    _: c_int,
    results: *mut HeuristicResult,
    count: *mut c_int,
) -> BlasStatus {
    // SAFETY: the caller's places for a result and a number; all zeros are a result of success.
    unsafe {
        results.write_bytes(0, 1);
        count.write(1);
    }
    BlasStatus::SUCCESS
}

/// cuBLASLt.
pub(super) static CUBLASLT: CublasLt = CublasLt {
    cublasLtCreate: create,
    cublasLtDestroy: destroy,
    cublasLtGetStatusString: describe_status,
    cublasLtMatmul: multiply,
    cublasLtMatmulAlgoCheck: check_algorithm,
    cublasLtMatmulAlgoGetHeuristic: offer,
    cublasLtMatmulDescCreate: create_operation,
    cublasLtMatmulDescDestroy: destroy_operation,
    cublasLtMatmulDescSetAttribute: set_operation,
    cublasLtMatmulPreferenceCreate: create_preference,
    cublasLtMatmulPreferenceDestroy: destroy_preference,
    cublasLtMatmulPreferenceSetAttribute: set_preference,
    cublasLtMatrixLayoutCreate: create_layout,
    cublasLtMatrixLayoutDestroy: destroy_layout,
};
