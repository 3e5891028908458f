//! The functions that this program calls, for each library.
//!
//! A function that is called and not listed here panics on machines whose library lacks it: list
//! what you call. All of the driver's exist since CUDA 12.0.

/// Functions of the driver, ours and those behind cudarc's `CudaContext`, `CudaStream`, `CudaEvent`
/// and `CudaModule`.
///
/// `cuEventElapsedTime_v2` is missing on purpose: it was added in CUDA 12.8. Look the older
/// `cuEventElapsedTime` up with [`Library::function`](super::Library::function) instead.
pub(super) const DRIVER: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAllocAsync",
    "cuMemAlloc_v2",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// Functions of the compiler of kernels.
pub(super) const NVRTC: &[&str] = &[
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetErrorString",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcGetSupportedArchs",
    "nvrtcVersion",
];

/// Functions for matmuls.
pub(super) const CUBLASLT: &[&str] = &[
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtGetStatusString",
    "cublasLtGetVersion",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatrixLayoutSetAttribute",
];

/// Functions for collectives. `ncclCommRegister` and `ncclCommDeregister` are missing on purpose:
/// they were added in NCCL 2.19, and are used where they exist.
pub(super) const NCCL: &[&str] = &[
    "ncclAllGather",
    "ncclAllReduce",
    "ncclCommAbort",
    "ncclCommDestroy",
    "ncclCommFinalize",
    "ncclCommGetAsyncError",
    "ncclCommInitRankConfig",
    "ncclGetErrorString",
    "ncclGetLastError",
    "ncclGetUniqueId",
    "ncclGetVersion",
    "ncclGroupEnd",
    "ncclGroupStart",
    "ncclReduceScatter",
];

/// Functions for attention: its graphs are built by descriptors alone.
pub(super) const CUDNN: &[&str] = &[
    "cudnnBackendCreateDescriptor",
    "cudnnBackendDestroyDescriptor",
    "cudnnBackendExecute",
    "cudnnBackendFinalize",
    "cudnnBackendGetAttribute",
    "cudnnBackendSetAttribute",
    "cudnnCreate",
    "cudnnDestroy",
    "cudnnGetErrorString",
    "cudnnGetLastErrorString",
    "cudnnGetVersion",
    "cudnnSetStream",
];
