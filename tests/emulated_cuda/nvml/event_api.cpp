// NVML's events: the XID errors that a test has planted, once each, and as with a real GPU only
// those after the registration: their seconds count from it, and what comes at 0 was before.
#include <vector>

#include "gpu.h"

namespace emulated {

struct Waiting {
    Gpu* gpu;
    const char* what;
    double registered;
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
        for (const char* what : {"xid", "next_xid"}) {
            if (planted_at(0, gpu, what, 0) == 0) {
                set->waiting.push_back({gpu, what, seconds()});
            }
        }
    }
    return answer(gpu);
}

CUDA_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data, unsigned) {
    for (auto waiting = set->waiting.begin(); waiting != set->waiting.end(); ++waiting) {
        const double since = seconds() - waiting->registered;
        const double xid = planted_at(since, waiting->gpu, waiting->what, 0);
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
