// NVML: the library, its GPUs, and what they tell. The figures are those of an H100 at work, but
// for its memory, of which a test plants what others use.
#include <cstdio>
#include <cstring>

#include "gpu.h"

namespace emulated {

// Bits of NVML's reasons for which clocks are held down: hardware and thermal slowdowns.
constexpr unsigned SLOWDOWNS = 0x8 | 0x20 | 0x40 | 0x80;

static bool is_initialized = false;

static unsigned long long throttled(const Gpu* gpu) {
    return static_cast<unsigned long long>(planted(gpu, "throttled", 0));
}

static bool is_slowed_down(const Gpu* gpu) { return (throttled(gpu) & SLOWDOWNS) != 0; }

static double watts(const Gpu* gpu) { return planted(gpu, "power", 650); }

static nvmlReturn_t found(Gpu* gpu, nvmlDevice_t* device) {
    *device = gpu;
    return gpu == nullptr ? NVML_ERROR_NOT_FOUND : answer(gpu);
}

CUDA_API nvmlReturn_t nvmlInit_v2() {
    if (!is_initialized) {
        start_clock();
    }
    is_initialized = true;
    return NVML_SUCCESS;
}

CUDA_API nvmlReturn_t nvmlShutdown() {
    is_initialized = false;
    return NVML_SUCCESS;
}

CUDA_API nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned length) {
    snprintf(version, length, "580.65.06");
    return NVML_SUCCESS;
}

CUDA_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* id, nvmlDevice_t* device) {
    unsigned domain = 0;
    unsigned bus = 0;
    if (!is_initialized) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (sscanf(id, "%x:%x:", &domain, &bus) != 2) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return found(gpu_at(int(bus) - 1), device);  // the first bus is the host's
}

CUDA_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
    *count = 0;
    while (gpu_at(int(*count)) != nullptr) {
        ++*count;
    }
    return NVML_SUCCESS;
}

CUDA_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
    return found(gpu_at(int(index)), device);
}

CUDA_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t gpu, nvmlUtilization_t* rates) {
    *rates = {97, 60};
    return answer(gpu);
}

CUDA_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t gpu, nvmlMemory_v2_t* memory) {
    memory->total = 80ull << 30;
    memory->reserved = 1ull << 30;
    memory->used = static_cast<unsigned long long>(planted(gpu, "used_mib", 4)) << 20;
    memory->free = memory->total - memory->reserved - memory->used;
    return answer(gpu);
}

CUDA_API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t gpu, unsigned* milliwatts) {
    *milliwatts = unsigned(watts(gpu) * 1e3);
    return answer(gpu);
}

CUDA_API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t gpu, unsigned* milliwatts) {
    *milliwatts = unsigned(planted(gpu, "limit", 700) * 1e3);
    return answer(gpu);
}

CUDA_API nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t gpu,
                                                               unsigned* milliwatts) {
    *milliwatts = 700000;
    return answer(gpu);
}

CUDA_API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t gpu,
                                                          unsigned long long* millijoules) {
    *millijoules = static_cast<unsigned long long>(1e9 + seconds() * watts(gpu) * 1e3);
    return answer(gpu);
}

CUDA_API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t gpu, int clock, unsigned* megahertz) {
    const unsigned sm = is_slowed_down(gpu) ? 990 : 1755;
    *megahertz = clock == NVML_CLOCK_SM ? sm : 2619;
    return answer(gpu);
}

CUDA_API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t gpu, int clock, unsigned* megahertz) {
    *megahertz = clock == NVML_CLOCK_SM ? 1980 : 2619;
    return answer(gpu);
}

CUDA_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t gpu, int, unsigned* celsius) {
    *celsius = is_slowed_down(gpu) ? 90 : 61;
    return answer(gpu);
}

CUDA_API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t gpu,
                                                                unsigned long long* reasons) {
    *reasons = throttled(gpu);
    return planted(gpu, "refused", 0) > 0 ? NVML_ERROR_NOT_SUPPORTED : answer(gpu);
}

CUDA_API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t gpu, int kind, int,
                                                  unsigned long long* count) {
    const bool uncorrected = kind == NVML_MEMORY_ERROR_TYPE_UNCORRECTED;
    *count = static_cast<unsigned long long>(planted(gpu, uncorrected ? "ecc" : "corrected", 0));
    return answer(gpu);
}

CUDA_API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t gpu, int, unsigned* kilobytes) {
    *kilobytes = 25000;
    return answer(gpu);
}

CUDA_API nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t gpu, unsigned* count) {
    *count = unsigned(planted(gpu, "replays", 0));
    return answer(gpu);
}

CUDA_API nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t gpu, unsigned* lanes) {
    *lanes = unsigned(planted(gpu, "lanes", 16));
    return answer(gpu);
}

CUDA_API nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t gpu, unsigned* lanes) {
    *lanes = 16;
    return answer(gpu);
}

// The process that a test has planted, which holds all the memory that is used.
CUDA_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t gpu, unsigned* count,
                                                              nvmlProcessInfo_t* processes) {
    const unsigned process = unsigned(planted(gpu, "process", 0));
    const unsigned room = *count;
    *count = process == 0 ? 0 : 1;
    if (room < *count) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    if (process != 0) {
        const double used = planted(gpu, "used_mib", 4);
        processes[0] = {process, static_cast<unsigned long long>(used) << 20, ~0u, ~0u};
    }
    return answer(gpu);
}

// NVLinks carry 1 MiB a second each way; what else is asked for this GPU does not have. A scope is
// that of a link, and only of fields that are of links.
static void tell(nvmlFieldValue_t* field) {
    const bool is_of_links = field->fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX ||
                             field->fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX;
    field->nvmlReturn = NVML_SUCCESS;
    if (field->scopeId != (is_of_links ? ALL_LINKS : 0)) {
        field->nvmlReturn = NVML_ERROR_INVALID_ARGUMENT;
    } else if (is_of_links) {
        field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        field->value.ullVal = static_cast<unsigned long long>(seconds() * 1024);
    } else if (field->fieldId == NVML_FI_DEV_MEMORY_TEMP) {
        field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        field->value.uiVal = 74;
    } else {
        field->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
}

CUDA_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t gpu, int count,
                                               nvmlFieldValue_t* values) {
    for (int index = 0; index < count; index++) {
        tell(&values[index]);
    }
    return answer(gpu);
}

}  // namespace emulated
