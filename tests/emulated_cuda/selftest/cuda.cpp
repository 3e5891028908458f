// Short ways to use the functions under test.
#include "cuda.h"

#include <fstream>
#include <sstream>

#include "harness.h"

void open_device(int device) {
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr address = 0;
    CHECK_EQUAL(cuMemAlloc_v2(&address, bytes), CUDA_SUCCESS);
    return address;
}

CUstream make_stream() {
    CUstream stream = nullptr;
    CHECK_EQUAL(cuStreamCreate(&stream, STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return stream;
}

CUdeviceptr upload(const void* values, size_t bytes) {
    const CUdeviceptr address = allocate(bytes);
    CHECK_EQUAL(cuMemcpyHtoDAsync_v2(address, values, bytes, nullptr), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
    return address;
}

void download(void* values, CUdeviceptr from, size_t bytes) {
    CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemcpyDtoHAsync_v2(values, from, bytes, nullptr), CUDA_SUCCESS);
}

static std::string intrinsics() {
    std::ostringstream text;
    text << std::ifstream("device/src/cuda/intrinsics.cuh").rdbuf();
    return text.str();
}

Compiled compile(const std::string& source, const std::string& architecture,
                 const std::vector<std::string>& options) {
    const std::string header = intrinsics();
    const char* headers[] = {header.c_str()};
    const char* names[] = {"intrinsics.cuh"};
    void* program = nullptr;
    CHECK_EQUAL(nvrtcCreateProgram(&program, source.c_str(), "test.cu", 1, headers, names), 0);
    const std::string first = "--gpu-architecture=" + architecture;
    std::vector<const char*> all = {first.c_str()};
    for (const std::string& option : options) {
        all.push_back(option.c_str());
    }
    Compiled compiled;
    compiled.result = nvrtcCompileProgram(program, int(all.size()), all.data());
    size_t bytes = 0;
    CHECK_EQUAL(nvrtcGetProgramLogSize(program, &bytes), 0);
    compiled.log.resize(bytes);
    CHECK_EQUAL(nvrtcGetProgramLog(program, compiled.log.data()), 0);
    if (compiled.result == 0) {
        CHECK_EQUAL(nvrtcGetCUBINSize(program, &bytes), 0);
        compiled.cubin.resize(bytes);
        CHECK_EQUAL(nvrtcGetCUBIN(program, compiled.cubin.data()), 0);
    }
    CHECK_EQUAL(nvrtcDestroyProgram(&program), 0);
    return compiled;
}

CUfunction load_kernel(const std::string& source, const char* name) {
    const Compiled compiled = compile("#include \"intrinsics.cuh\"\n" + source);
    if (compiled.result != 0) {
        fputs(compiled.log.c_str(), stderr);
    }
    CHECK_EQUAL(compiled.result, 0);
    CUmodule module = nullptr;
    CHECK_EQUAL(cuModuleLoadData(&module, compiled.cubin.data()), CUDA_SUCCESS);
    CUfunction function = nullptr;
    CHECK_EQUAL(cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
    return function;
}

CUresult launch(CUfunction function, Grid grid, CUstream stream, std::vector<void*> arguments) {
    arguments.push_back(nullptr);
    return cuLaunchKernel(function, grid.blocks, 1, 1, grid.threads, 1, 1, grid.shared_bytes,
                          stream, arguments.data(), nullptr);
}
