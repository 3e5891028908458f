// The driver: devices, contexts, handles, memory.
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "cuda.h"
#include "harness.h"

PASSES(device_is_described) {
    open_device();
    int value = 0;
    CHECK_EQUAL(cuDeviceGetAttribute(&value, ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0), 0);
    CHECK_EQUAL(value, 9);
    CHECK_EQUAL(cuDeviceGetAttribute(&value, 9999, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuDeviceGetAttribute(&value, ATTRIBUTE_WARP_SIZE, 1), CUDA_ERROR_INVALID_DEVICE);
    setenv("EMULATED_CUDA_DRIVER_VERSION", "11080", 1);
    CHECK_EQUAL(cuDriverGetVersion(&value), 0);
    CHECK_EQUAL(value, 11080);
}

PASSES(no_device) {
    setenv("EMULATED_CUDA_DEVICES", "0", 1);
    CHECK_EQUAL(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

PASSES(visible_devices) {
    setenv("EMULATED_CUDA_DEVICES", "4", 1);
    setenv("CUDA_VISIBLE_DEVICES", "3,1,9", 1);
    CHECK_EQUAL(cuInit(0), 0);
    int value = 0;
    CHECK_EQUAL(cuDeviceGetCount(&value), 0);
    CHECK_EQUAL(value, 2);
    CHECK_EQUAL(cuDeviceGetAttribute(&value, ATTRIBUTE_PCI_BUS_ID, 0), 0);
    CHECK_EQUAL(value, 4);
}

PASSES(calls_without_context_are_refused) {
    int count = 0;
    CUdeviceptr address = 0;
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    CHECK_EQUAL(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_EQUAL(cuInit(0), 0);
    CHECK_EQUAL(cuMemAlloc_v2(&address, 16), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_EQUAL(cuStreamCreate(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), 0);
    CHECK_EQUAL(cuCtxSetCurrent(context), 0);
    CHECK_EQUAL(cuMemAlloc_v2(&address, 16), 0);
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), 0);
    CHECK_EQUAL(cuMemAlloc_v2(&address, 16), CUDA_ERROR_INVALID_CONTEXT);
}

PASSES(destroyed_handles_are_refused) {
    open_device();
    const CUstream stream = make_stream();
    CUevent event = nullptr;
    CHECK_EQUAL(cuEventCreate(&event, 0), 0);
    CHECK_EQUAL(cuEventDestroy_v2(event), 0);
    CHECK_EQUAL(cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQUAL(cuStreamDestroy_v2(stream), 0);
    CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQUAL(cuStreamDestroy_v2(stream), CUDA_ERROR_INVALID_HANDLE);
    const CUdeviceptr address = allocate(16);
    CHECK_EQUAL(cuMemFree_v2(address), 0);
    CHECK_EQUAL(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
}

PASSES(memory_is_limited) {
    setenv("EMULATED_CUDA_MEMORY_BYTES", "1048576", 1);
    open_device();
    CUdeviceptr address = 0;
    CHECK_EQUAL(cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemAlloc_v2(&address, 2 << 20), CUDA_ERROR_OUT_OF_MEMORY);
    const CUdeviceptr first = allocate(1 << 19);
    CHECK_EQUAL(first % 256, 0);
    const CUdeviceptr second = allocate(1 << 19);
    CHECK(second != first);
    CHECK_EQUAL(cuMemAlloc_v2(&address, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMemFree_v2(first), 0);
    size_t free = 0;
    size_t total = 0;
    CHECK_EQUAL(cuMemGetInfo_v2(&free, &total), 0);
    CHECK_EQUAL(free, 1 << 19);
    CHECK_EQUAL(total, 1 << 20);
}

PASSES(fresh_memory_is_poisoned) {
    open_device();
    CHECK(std::isnan(download<float>(allocate(400), 100)[57]));
}

ABORTS(copy_behind_the_end, "cuMemcpyHtoDAsync: 32 bytes from byte 16 of an allocation of 40") {
    open_device();
    const char bytes[32] = {};
    cuMemcpyHtoDAsync_v2(allocate(40) + 16, bytes, 32, nullptr);
}

ABORTS(copy_of_freed_memory, "is freed device memory") {
    open_device();
    const CUdeviceptr address = allocate(40);
    CHECK_EQUAL(cuMemFree_v2(address), 0);
    char bytes[32];
    cuMemcpyDtoHAsync_v2(bytes, address, 32, nullptr);
}

ABORTS(copy_of_memory_freed_meanwhile, "cuMemsetD8Async: 0x") {
    open_device();
    const CUdeviceptr address = allocate(40);
    const CUstream slow = make_stream();
    CHECK_EQUAL(cuLaunchHostFunc(slow, [](void*) { usleep(50000); }, nullptr), 0);
    CHECK_EQUAL(cuMemsetD8Async(address, 0, 40, slow), 0);
    CHECK_EQUAL(cuMemFreeAsync(address, make_stream()), 0);
    cuCtxSynchronize();
}

ABORTS(overlapping_copy, "overlap") {
    open_device();
    const CUdeviceptr address = allocate(400);
    cuMemcpyDtoDAsync_v2(address, address + 8, 16, nullptr);
}

ABORTS(host_access, "the host accesses device memory") {
    setenv("EMULATED_CUDA_PROTECT", "1", 1);
    open_device();
    const CUdeviceptr address = upload(std::vector<float>{1, 2, 3});
    CHECK(download<float>(address, 3)[2] == 3);
    *reinterpret_cast<volatile float*>(address) = 4;
}

ABORTS(host_access_to_freed_memory, "the host accesses freed device memory") {
    open_device();
    const CUdeviceptr address = allocate(16);
    CHECK_EQUAL(cuMemFree_v2(address), 0);
    *reinterpret_cast<volatile float*>(address) = 4;
}

ABORTS(device_pointer_as_host_pointer, "lies in device memory") {
    open_device();
    const CUdeviceptr address = allocate(400);
    cuMemcpyHtoDAsync_v2(address, reinterpret_cast<void*>(address + 64), 16, nullptr);
}

ABORTS(copy_behind_page_locked_memory, "page-locked memory of 64 bytes") {
    open_device();
    void* host = nullptr;
    CHECK_EQUAL(cuMemHostAlloc(&host, 64, 0), 0);
    cuMemcpyHtoDAsync_v2(allocate(400), host, 65, nullptr);
}
