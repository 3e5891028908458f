// Names and descriptions of the driver's errors.
#include <map>

#include "../cuda_abi.h"

struct Description {
    const char* name;
    const char* text;
};

static const Description* describe(CUresult error) {
    static const auto* const descriptions = new std::map<int, Description>{
        {CUDA_SUCCESS, {"CUDA_SUCCESS", "no error"}},
        {CUDA_ERROR_INVALID_VALUE, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
        {CUDA_ERROR_OUT_OF_MEMORY, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
        {CUDA_ERROR_NOT_INITIALIZED, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
        {CUDA_ERROR_DEINITIALIZED, {"CUDA_ERROR_DEINITIALIZED", "driver shutting down"}},
        {CUDA_ERROR_STUB_LIBRARY,
         {"CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"}},
        {CUDA_ERROR_NO_DEVICE, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
        {CUDA_ERROR_INVALID_DEVICE, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
        {CUDA_ERROR_INVALID_IMAGE,
         {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
        {CUDA_ERROR_INVALID_CONTEXT, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
        {CUDA_ERROR_NO_BINARY_FOR_GPU,
         {"CUDA_ERROR_NO_BINARY_FOR_GPU",
          "no kernel image is available for execution on the device"}},
        {CUDA_ERROR_INVALID_PTX, {"CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"}},
        {CUDA_ERROR_INVALID_HANDLE, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
        {CUDA_ERROR_NOT_FOUND, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
        {CUDA_ERROR_NOT_READY, {"CUDA_ERROR_NOT_READY", "device not ready"}},
        {CUDA_ERROR_ILLEGAL_ADDRESS,
         {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
        {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
         {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"}},
        {CUDA_ERROR_CONTEXT_IS_DESTROYED,
         {"CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"}},
        {CUDA_ERROR_LAUNCH_FAILED,
         {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
        {CUDA_ERROR_NOT_SUPPORTED,
         {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
        {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
         {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
          "system has unsupported display driver / cuda driver combination"}},
        {CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
         {"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
          "forward compatibility was attempted on non supported HW"}},
        {CUDA_ERROR_UNKNOWN, {"CUDA_ERROR_UNKNOWN", "unknown error"}},
    };
    const auto found = descriptions->find(error);
    return found == descriptions->end() ? nullptr : &found->second;
}

CUDA_API CUresult cuGetErrorName(CUresult error, const char** name) {
    const Description* description = describe(error);
    *name = description == nullptr ? nullptr : description->name;
    return description == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUDA_API CUresult cuGetErrorString(CUresult error, const char** text) {
    const Description* description = describe(error);
    *text = description == nullptr ? nullptr : description->text;
    return description == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
