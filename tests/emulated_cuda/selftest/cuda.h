// The functions under test, and short ways to use them.
#pragma once

#include <string>
#include <vector>

#include "../cuda_abi.h"

extern "C" {
CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int* version);
CUresult cuDeviceGetCount(int* count);
CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext* context);
CUresult cuCtxSynchronize();
CUresult cuMemGetInfo_v2(size_t* free, size_t* total);
CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream);
CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void* address);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream);
CUresult cuModuleLoadData(CUmodule* module, const void* image);
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name);
CUresult cuModuleUnload(CUmodule module);
CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value);
CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction function);
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z,
                        unsigned shared_bytes, CUstream stream, void** parameters, void** extra);
CUresult cuStreamCreate(CUstream* stream, unsigned flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuEventCreate(CUevent* event, unsigned flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data);

int nvrtcCreateProgram(void** program, const char* source, const char* name, int header_count,
                       const char* const* headers, const char* const* header_names);
int nvrtcCompileProgram(void* program, int count, const char* const* options);
int nvrtcGetProgramLogSize(void* program, size_t* bytes);
int nvrtcGetProgramLog(void* program, char* log);
int nvrtcGetCUBINSize(void* program, size_t* bytes);
int nvrtcGetCUBIN(void* program, char* cubin);
int nvrtcDestroyProgram(void** program);
}

// Makes the primary context of a device current.
void open_device(int device = 0);

CUdeviceptr allocate(size_t bytes);
CUstream make_stream();

// Device memory with these values, and the values that device memory has.
CUdeviceptr upload(const void* values, size_t bytes);
template <class T>
CUdeviceptr upload(const std::vector<T>& values) {
    return upload(values.data(), values.size() * sizeof(T));
}
void download(void* values, CUdeviceptr from, size_t bytes);
template <class T>
std::vector<T> download(CUdeviceptr from, size_t count) {
    std::vector<T> values(count);
    download(values.data(), from, count * sizeof(T));
    return values;
}

// The outcome of a compilation.
struct Compiled {
    int result;
    std::string log;
    std::string cubin;
};
Compiled compile(const std::string& source, const std::string& architecture = "sm_90a",
                 const std::vector<std::string>& options = {});

// A kernel of a source that includes "intrinsics.cuh".
CUfunction load_kernel(const std::string& source, const char* name);

struct Grid {
    unsigned blocks;
    unsigned threads;
    unsigned shared_bytes = 0;
};

// Launches on a stream; arguments by address.
CUresult launch(CUfunction function, Grid grid, CUstream stream, std::vector<void*> arguments);
