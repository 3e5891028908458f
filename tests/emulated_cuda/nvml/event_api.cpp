// NVML's events: the XID errors that a test has planted, once.
#include <vector>

#include "gpu.h"

namespace emulated {

struct Waiting {
    Gpu* gpu;
    const char* planted;
};

struct EventSet {
    std::vector<Waiting> waiting;
};

CUDA_API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* set) {
    *set = new EventSet();
    return NVML_SUCCESS;
}

CUDA_API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t gpu, unsigned long long types,
                                               nvmlEventSet_t set) {
    if ((types & NVML_EVENT_TYPE_XID_CRITICAL_ERROR) != 0) {
        set->waiting.push_back({gpu, "xid"});
        set->waiting.push_back({gpu, "next_xid"});
    }
    return NVML_SUCCESS;
}

CUDA_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data, unsigned) {
    for (auto waiting = set->waiting.begin(); waiting != set->waiting.end(); ++waiting) {
        const double xid = planted(waiting->gpu, waiting->planted, 0);
        if (xid > 0) {
            *data = {waiting->gpu, NVML_EVENT_TYPE_XID_CRITICAL_ERROR,
                     static_cast<unsigned long long>(xid), ~0u, ~0u};
            set->waiting.erase(waiting);
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
