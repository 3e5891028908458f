// What the driver says of itself and of devices.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "context.h"
#include "memory.h"
#include "settings.h"

namespace emulated {

// What a device says that it can do; kernels are compiled and loaded for 9.0 all the same.
static int compute_capability() {
    constexpr int own = COMPUTE_CAPABILITY_MAJOR * 10 + COMPUTE_CAPABILITY_MINOR;
    return int(setting("EMULATED_CUDA_COMPUTE_CAPABILITY", own));
}

// The figures of an H100, but for the number of multiprocessors.
static const std::map<int, int>& attributes() {
    static const auto* const values = new std::map<int, int>{
        {ATTRIBUTE_MAX_THREADS_PER_BLOCK, THREADS_PER_BLOCK_MAX},
        {ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
        {ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
        {ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
        {ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
        {ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
        {ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
        {ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, SHARED_BYTES_DEFAULT},
        {ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
        {ATTRIBUTE_WARP_SIZE, 32},
        {ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
        {ATTRIBUTE_CLOCK_RATE, 1980000},
        {ATTRIBUTE_MULTIPROCESSOR_COUNT, MULTIPROCESSORS},
        {ATTRIBUTE_INTEGRATED, 0},
        {ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
        {ATTRIBUTE_COMPUTE_MODE, 0},
        {ATTRIBUTE_CONCURRENT_KERNELS, 1},
        {ATTRIBUTE_ECC_ENABLED, 0},
        {ATTRIBUTE_PCI_DEVICE_ID, 0},
        {ATTRIBUTE_MEMORY_CLOCK_RATE, 2619000},
        {ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
        {ATTRIBUTE_L2_CACHE_SIZE, 50 << 20},
        {ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
        {ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
        {ATTRIBUTE_UNIFIED_ADDRESSING, 1},
        {ATTRIBUTE_PCI_DOMAIN_ID, 0},
        {ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, compute_capability() / 10},
        {ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, compute_capability() % 10},
        {ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
        {ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 228 << 10},
        {ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
        {ATTRIBUTE_MANAGED_MEMORY, 0},
        {ATTRIBUTE_COOPERATIVE_LAUNCH, 0},
        {ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, SHARED_BYTES_OPT_IN},
        {ATTRIBUTE_HOST_REGISTER_SUPPORTED, 0},
        {ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
        {ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
        {ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
        {ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 0},
        {ATTRIBUTE_DMA_BUF_SUPPORTED, 0},
    };
    return *values;
}

// The first bus is the host's.
static int bus_id(const Context* context) { return context->physical + 1; }

// What every function with a device checks first.
static CUresult check_device(CUdevice device) {
    if (!initialized()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return device_context(device) == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUDA_API CUresult cuDriverGetVersion(int* version) {
    *version = int(setting("EMULATED_CUDA_DRIVER_VERSION", 13000));
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetCount(int* count) {
    if (!initialized()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    *count = device_count();
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    const CUresult checked = check_device(ordinal);
    if (checked == CUDA_SUCCESS) {
        *device = ordinal;
    }
    return checked;
}

CUDA_API CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    const CUresult checked = check_device(device);
    if (checked == CUDA_SUCCESS) {
        const char* configured = getenv("EMULATED_CUDA_NAME");
        snprintf(name, size_t(length), "%s",
                 configured == nullptr ? "Emulated CUDA device" : configured);
    }
    return checked;
}

CUDA_API CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
    const CUresult checked = check_device(device);
    if (checked != CUDA_SUCCESS) {
        return checked;
    }
    if (attribute == ATTRIBUTE_PCI_BUS_ID) {
        *value = bus_id(device_context(device));
        return CUDA_SUCCESS;
    }
    const auto found = attributes().find(attribute);
    if (found == attributes().end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *value = found->second;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    const CUresult checked = check_device(device);
    if (checked == CUDA_SUCCESS) {
        *bytes = device_memory_bytes(device_context(device)->physical);
    }
    return checked;
}

CUDA_API CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
    const CUresult checked = check_device(device);
    if (checked == CUDA_SUCCESS) {
        snprintf(id, size_t(length), "0000:%02x:00.0", bus_id(device_context(device)));
    }
    return checked;
}

CUDA_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    const CUresult checked = check_device(device);
    if (checked == CUDA_SUCCESS) {
        char text[40];
        snprintf(text, sizeof text, "emulated-gpu-%03d", device_context(device)->physical);
        memcpy(uuid->bytes, text, sizeof uuid->bytes);
    }
    return checked;
}

CUDA_API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
    return cuDeviceGetUuid_v2(uuid, device);
}

}  // namespace emulated
