// The part of NVML's binary interface that is emulated, with the values that NVIDIA publishes.
#pragma once

#include <cstdint>

#include "../cuda_abi.h"

namespace emulated {

enum nvmlReturn_t {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
};

// A GPU; the pointer that a program holds.
struct Gpu;
using nvmlDevice_t = Gpu*;

// GPUs whose events are waited for.
struct EventSet;
using nvmlEventSet_t = EventSet*;

struct nvmlUtilization_t {
    unsigned gpu;
    unsigned memory;
};

struct nvmlMemory_v2_t {
    unsigned version;
    unsigned long long total;
    unsigned long long reserved;
    unsigned long long free;
    unsigned long long used;
};

struct nvmlProcessInfo_t {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId;
    unsigned computeInstanceId;
};

struct nvmlEventData_t {
    nvmlDevice_t device;
    unsigned long long eventType;
    unsigned long long eventData;
    unsigned gpuInstanceId;
    unsigned computeInstanceId;
};

struct nvmlFieldValue_t {
    unsigned fieldId;
    unsigned scopeId;
    long long timestamp;
    long long latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    union {
        double dVal;
        unsigned uiVal;
        unsigned long long ullVal;
    } value;
};

constexpr int NVML_VALUE_TYPE_UNSIGNED_INT = 1;
constexpr int NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3;

constexpr int NVML_CLOCK_SM = 1;
constexpr int NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1;
constexpr unsigned long long NVML_EVENT_TYPE_XID_CRITICAL_ERROR = 8;

constexpr unsigned NVML_FI_DEV_MEMORY_TEMP = 82;
constexpr unsigned NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138;
constexpr unsigned NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139;
constexpr unsigned ALL_LINKS = ~0u;

}  // namespace emulated
