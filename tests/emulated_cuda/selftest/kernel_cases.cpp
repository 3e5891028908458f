// NVRTC, modules, launches, and what goes wrong in kernels.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "cuda.h"
#include "harness.h"

// Launches a kernel that gets 256 floats of device memory, all 1, which are returned.
static std::vector<float> run(const std::string& source, Grid grid) {
    open_device();
    const CUfunction kernel = load_kernel(source, "test");
    CUdeviceptr values = upload(std::vector<float>(256, 1.0f));
    CHECK_EQUAL(launch(kernel, grid, nullptr, {&values}), 0);
    return download<float>(values, 256);
}

static const char* const ASYNC_COPY = R"(
    KERNEL void test(float* values) {
        __shared__ __align__(16) float shared[128];
        cp_async16(shared + threadIdx.x * 4, values + threadIdx.x * 4, threadIdx.x != 1);
        cp_async_commit();
        WAIT
        float early = shared[threadIdx.x * 4];
        cp_async_wait<0>();
        values[128 + threadIdx.x] = early;
        values[160 + threadIdx.x] = shared[threadIdx.x * 4];
    }
    EXPORT_KERNEL(test))";

PASSES(async_copy_arrives_at_the_wait) {
    const std::vector<float> values = run(std::string("#define WAIT\n") + ASYNC_COPY, {1, 32});
    CHECK(std::isnan(values[128]) && values[160] == 1 && values[161] == 0);
}

PASSES(async_copy_has_arrived_after_the_wait) {
    const std::string wait = "#define WAIT cp_async_wait<0>();\n";
    CHECK(run(wait + ASYNC_COPY, {1, 32})[128] == 1);
}

PASSES(missing_barrier_shows) {
    const std::vector<float> values = run(R"(
        KERNEL void test(float* out) {
            __shared__ float shared[128];
            shared[threadIdx.x] = 1.0f;
            out[threadIdx.x] = shared[127 - threadIdx.x];
        }
        EXPORT_KERNEL(test))", {1, 128});
    int poisoned = 0;
    for (int i = 0; i < 128; i++) {
        poisoned += std::isnan(values[size_t(i)]);
    }
    CHECK(poisoned > 0);
}

ABORTS(divergent_barrier, "divergent barrier") {
    run(R"(
        KERNEL void test(float* out) {
            if (threadIdx.x < 32) {
                __syncthreads();
            } else {
                out[0] = 1.0f;
                __syncthreads();
            }
        }
        EXPORT_KERNEL(test))", {1, 64});
}

ABORTS(barrier_that_a_lane_misses, "deadlock") {
    run(R"(
        KERNEL void test(float* out) {
            if (threadIdx.x < 5) __syncthreads();
            out[0] = __shfl_sync(0xffffffffu, 1.0f, 0);
        }
        EXPORT_KERNEL(test))", {1, 64});
}

ABORTS(divergent_warp, "divergent warp") {
    run(R"(
        KERNEL void test(float* out) {
            if (threadIdx.x < 16) __syncwarp();
            else out[0] = __shfl_sync(0xffffffffu, 1.0f, 0);
        }
        EXPORT_KERNEL(test))", {1, 32});
}

ABORTS(lane_outside_of_the_mask, "without being in its mask") {
    run(R"(
        KERNEL void test(float* out) { out[threadIdx.x] = __shfl_sync(1u, 1.0f, 0); }
        EXPORT_KERNEL(test))", {1, 32});
}

ABORTS(barrier_in_elementwise_kernel, "__syncthreads in a kernel of EXPORT_KERNEL_ELEMENTWISE") {
    run(R"(
        KERNEL void test(float* out) { out[0] = 1.0f; __syncthreads(); }
        EXPORT_KERNEL_ELEMENTWISE(test))", {1, 32});
}

ABORTS(write_behind_dynamic_shared_memory, "past the dynamic shared memory") {
    run(R"(
        KERNEL void test(float* out) { DYNAMIC_SHARED(raw); raw[64] = 1; out[0] = raw[0]; }
        EXPORT_KERNEL(test))", {1, 1, 64});
}

ABORTS(write_behind_an_allocation, "kernel test: something wrote 0 bytes behind") {
    run(R"(
        KERNEL void test(float* out) { out[256] = 1.0f; }
        EXPORT_KERNEL(test))", {1, 1});
}

ABORTS(wild_write, "kernel test accesses device memory outside of any allocation") {
    run(R"(
        KERNEL void test(float* out) { out[1 << 20] = 1.0f; }
        EXPORT_KERNEL(test))", {1, 1});
}

// The address hides in a number, where the launch cannot check it.
ABORTS(read_of_freed_memory, "kernel test accesses freed device memory") {
    open_device();
    const CUfunction kernel = load_kernel(R"(
        KERNEL void test(u64 address) { *(volatile float*)address = *(float*)address + 1; }
        EXPORT_KERNEL(test))", "test");
    CUdeviceptr address = allocate(64);
    CHECK_EQUAL(cuMemFree_v2(address), 0);
    launch(kernel, {1, 1}, nullptr, {&address});
    cuCtxSynchronize();
}

static const char* const FILL = R"(
    constexpr int THREADS = 64;
    KERNEL void __launch_bounds__(THREADS, 2) test(float* out) { out[threadIdx.x] = 1.0f; }
    EXPORT_KERNEL_ELEMENTWISE(test))";

ABORTS(freed_memory_as_argument, "kernel test, argument 0: 0x") {
    open_device();
    const CUfunction kernel = load_kernel(FILL, "test");
    CUdeviceptr address = allocate(1024);
    CHECK_EQUAL(cuMemFree_v2(address), 0);
    launch(kernel, {1, 64}, nullptr, {&address});
}

ABORTS(host_memory_as_argument, "is no device memory") {
    open_device();
    const CUfunction kernel = load_kernel(FILL, "test");
    float value = 0;
    float* pointer = &value;
    launch(kernel, {1, 64}, nullptr, {&pointer});
}

PASSES(impossible_launches_are_refused) {
    open_device();
    const CUfunction kernel = load_kernel(FILL, "test");
    CUdeviceptr address = allocate(1024);
    void* arguments[] = {&address};
    const auto launch_with = [&](unsigned grid_y, unsigned threads, unsigned shared_bytes) {
        return cuLaunchKernel(kernel, 1, grid_y, 1, threads, 1, 1, shared_bytes, nullptr,
                              arguments, nullptr);
    };
    CHECK_EQUAL(launch_with(1, 64, 0), CUDA_SUCCESS);
    CHECK_EQUAL(launch_with(0, 64, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(launch_with(65536, 64, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(launch_with(1, 1025, 0), CUDA_ERROR_INVALID_VALUE);
    // More than __launch_bounds__ says.
    CHECK_EQUAL(launch_with(1, 65, 0), CUDA_ERROR_INVALID_VALUE);
    int value = 0;
    CHECK_EQUAL(cuFuncGetAttribute(&value, FUNCTION_MAX_THREADS_PER_BLOCK, kernel), 0);
    CHECK_EQUAL(value, 64);
}

PASSES(too_much_shared_memory_is_refused) {
    open_device();
    const CUfunction kernel = load_kernel(FILL, "test");
    CUdeviceptr address = allocate(1024);
    CHECK_EQUAL(launch(kernel, {1, 64, 49153}, nullptr, {&address}), CUDA_ERROR_INVALID_VALUE);
    const int attribute = FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    CHECK_EQUAL(cuFuncSetAttribute(kernel, attribute, 300000), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuFuncSetAttribute(kernel, attribute, 100000), CUDA_SUCCESS);
    CHECK_EQUAL(launch(kernel, {1, 64, 100000}, nullptr, {&address}), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
}

PASSES(arguments_are_copied_at_the_launch) {
    open_device();
    const CUfunction kernel = load_kernel(R"(
        KERNEL void test(float* out, int value) { out[0] = float(value); }
        EXPORT_KERNEL(test))", "test");
    CUdeviceptr address = allocate(4);
    int value = 5;
    CHECK_EQUAL(launch(kernel, {1, 1}, nullptr, {&address, &value}), 0);
    value = 6;
    CHECK(download<float>(address, 1)[0] == 5);
}

PASSES(unknown_images_are_refused) {
    open_device();
    CUmodule module = nullptr;
    CHECK_EQUAL(cuModuleLoadData(&module, "\x7f" "ELF"), CUDA_ERROR_INVALID_IMAGE);
    const std::string source = std::string("#include \"intrinsics.cuh\"\n") + FILL;
    std::string damaged = compile(source).cubin;
    damaged[damaged.size() / 2] = char(damaged[damaged.size() / 2] + 1);
    CHECK_EQUAL(cuModuleLoadData(&module, damaged.data()), CUDA_ERROR_INVALID_IMAGE);
    const std::string other = compile(source, "sm_80").cubin;
    CHECK_EQUAL(cuModuleLoadData(&module, other.data()), CUDA_ERROR_NO_BINARY_FOR_GPU);
    const std::string right = compile(source, "sm_90").cubin;
    CHECK_EQUAL(cuModuleLoadData(&module, right.data()), CUDA_SUCCESS);
    CUfunction function = nullptr;
    CHECK_EQUAL(cuModuleGetFunction(&function, module, "other"), CUDA_ERROR_NOT_FOUND);
    CHECK_EQUAL(cuModuleUnload(module), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleGetFunction(&function, module, "test"), CUDA_ERROR_INVALID_HANDLE);
}

// Every process finds a whole library, whoever compiled it.
PASSES(processes_compile_at_the_same_time) {
    const char* temporary = getenv("TMPDIR");
    std::string folder = temporary ? temporary : P_tmpdir;
    folder += "/emulated-cuda-selftest.XXXXXX";
    CHECK(mkdtemp(folder.data()) != nullptr);
    setenv("EMULATED_CUDA_CACHE", folder.c_str(), 1);
    std::vector<pid_t> children;
    for (int i = 0; i < 4; i++) {
        const pid_t child = fork();
        if (child == 0) {
            open_device();
            load_kernel(FILL, "test");
            _Exit(0);
        }
        children.push_back(child);
    }
    for (const pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        CHECK_EQUAL(status, 0);
    }
    size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        CHECK(entry.path().extension() == ".so");
        files++;
    }
    CHECK_EQUAL(files, 1);
    std::filesystem::remove_all(folder);
}

PASSES(compiler_errors_are_reported) {
    const Compiled wrong = compile("int test() { return missing; }");
    CHECK_EQUAL(wrong.result, 6);
    CHECK(wrong.log.find("missing") != std::string::npos);
    CHECK_EQUAL(compile("", "sm_42").result, 5);
    CHECK_EQUAL(compile("", "sm_90", {"--no-such-option"}).result, 5);
    CHECK_EQUAL(compile("int x = WIDTH;", "sm_90", {"-DWIDTH=1", "--std=c++17"}).result, 0);
    CHECK_EQUAL(compile("int x = WIDTH;", "sm_90", {"--define-macro=WIDTH=1"}).result, 0);
}
