// NVML's events: the XID error that a test has planted, once.
#include <vector>

#include "gpu.h"

namespace emulated {

struct EventSet {
    std::vector<Gpu*> waiting;
};

CUDA_API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* set) {
    *set = new EventSet();
    return NVML_SUCCESS;
}

CUDA_API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t gpu, unsigned long long types,
                                               nvmlEventSet_t set) {
    if ((types & NVML_EVENT_TYPE_XID_CRITICAL_ERROR) != 0) {
        set->waiting.push_back(gpu);
    }
    return NVML_SUCCESS;
}

CUDA_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data, unsigned) {
    for (auto gpu = set->waiting.begin(); gpu != set->waiting.end(); ++gpu) {
        const double xid = planted(*gpu, "xid", 0);
        if (xid > 0) {
            *data = {*gpu, NVML_EVENT_TYPE_XID_CRITICAL_ERROR,
                     static_cast<unsigned long long>(xid), ~0u, ~0u};
            set->waiting.erase(gpu);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_TIMEOUT;
}

CUDA_API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    delete set;
    return NVML_SUCCESS;
}

}  // namespace emulated
