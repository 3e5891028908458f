// NCCL's functions.
#include <sys/random.h>

#include <algorithm>
#include <map>

#include "../emulated_cuda.h"
#include "communicator.h"
#include "transport_log.h"
#include "types.h"

using namespace emulated;

typedef struct ncclComm* ncclComm_t;
typedef std::shared_ptr<Communicator> CommunicatorPointer;

CUDA_API CUresult cuCtxGetCurrent(CUcontext* context);

// Communicators that exist. A handle is never used again.
struct Communicators {
    std::mutex mutex;
    std::map<ncclComm_t, CommunicatorPointer> live;
    uintptr_t last = 0;
};

static Communicators& communicators() {
    static auto* const instance = new Communicators;
    return *instance;
}

static ncclComm_t add(CommunicatorPointer communicator) {
    Communicators& all = communicators();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.last += 16;
    const ncclComm_t handle = reinterpret_cast<ncclComm_t>(all.last);
    all.live[handle] = std::move(communicator);
    return handle;
}

static CommunicatorPointer find(ncclComm_t handle) {
    Communicators& all = communicators();
    std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.live.find(handle);
    return found == all.live.end() ? nullptr : found->second;
}

static CommunicatorPointer remove(ncclComm_t handle) {
    const CommunicatorPointer communicator = find(handle);
    std::lock_guard<std::mutex> lock(communicators().mutex);
    communicators().live.erase(handle);
    return communicator;
}

CUDA_API ncclResult_t ncclGetVersion(int* version) {
    *version = 23007;
    return ncclSuccess;
}

CUDA_API const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclUnhandledCudaError: return "unhandled cuda error";
        case ncclSystemError: return "unhandled system error";
        case ncclInternalError: return "internal error";
        case ncclInvalidArgument: return "invalid argument";
        case ncclInvalidUsage: return "invalid usage";
        case ncclRemoteError: return "remote process exited or there was a network error";
        case ncclInProgress: return "NCCL operation in progress";
        default: return "unknown result code";
    }
}

CUDA_API const char* ncclGetLastError(ncclComm_t /*communicator*/) { return last_error(); }

CUDA_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    const ssize_t read = getrandom(id->internal, sizeof id->internal, 0);
    return read == ssize_t(sizeof id->internal) ? ncclSuccess : ncclSystemError;
}

// Whether calls wait. False where the configuration is not one.
static bool read_config(const ncclConfig_t* config, bool& blocking) {
    blocking = true;
    if (config == nullptr) {
        return true;
    }
    if (config->magic != CONFIG_MAGIC || config->size < sizeof *config) {
        set_last_error("the configuration was not made by NCCL_CONFIG_INITIALIZER");
        return false;
    }
    blocking = config->blocking != 0;
    return config->blocking == CONFIG_UNDEFINED || config->blocking == 0 || config->blocking == 1;
}

CUDA_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int ranks, ncclUniqueId id,
                                             int rank, ncclConfig_t* config) {
    bool blocking = true;
    if (!read_config(config, blocking)) {
        return ncclInvalidArgument;
    }
    if (ranks < 1 || ranks > RANKS_MAX || rank < 0 || rank >= ranks) {
        set_last_error("a rank or number of ranks out of range");
        return ncclInvalidArgument;
    }
    const int device = emulated_cuda_physical_device();
    if (device < 0) {
        set_last_error("no CUDA context is current");
        return ncclUnhandledCudaError;
    }
    ncclResult_t error = ncclSuccess;
    std::shared_ptr<Segment> segment(Segment::attach(id, ranks, rank, device, error));
    if (segment == nullptr) {
        set_last_error("another rank has this number, or expects another number of ranks");
        return error;
    }
    log_network();
    auto communicator = std::make_shared<Communicator>(segment, ranks, rank, blocking);
    *handle = add(communicator);
    return blocking ? communicator->wait_for_ranks() : ncclInProgress;
}

CUDA_API ncclResult_t ncclCommInitRank(ncclComm_t* handle, int ranks, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(handle, ranks, id, rank, nullptr);
}

CUDA_API ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* state) {
    const CommunicatorPointer communicator = find(handle);
    if (communicator == nullptr || state == nullptr) {
        return ncclInvalidArgument;
    }
    *state = communicator->poll();
    return ncclSuccess;
}

CUDA_API ncclResult_t ncclCommAbort(ncclComm_t handle) {
    const CommunicatorPointer communicator = remove(handle);
    if (communicator == nullptr) {
        return ncclInvalidArgument;
    }
    communicator->abort();
    return ncclSuccess;
}

CUDA_API ncclResult_t ncclCommFinalize(ncclComm_t handle) {
    const CommunicatorPointer communicator = find(handle);
    return communicator == nullptr ? ncclInvalidArgument : communicator->finalize();
}

// Waits for what was called, as NCCL does where ncclCommFinalize was not.
CUDA_API ncclResult_t ncclCommDestroy(ncclComm_t handle) {
    const CommunicatorPointer communicator = remove(handle);
    if (communicator == nullptr) {
        return ncclInvalidArgument;
    }
    communicator->settle();
    communicator->disconnect();
    communicator->leave();
    return ncclSuccess;
}

CUDA_API ncclResult_t ncclCommCount(ncclComm_t handle, int* count) {
    const CommunicatorPointer communicator = find(handle);
    if (communicator == nullptr) {
        return ncclInvalidArgument;
    }
    *count = communicator->ranks;
    return ncclSuccess;
}

CUDA_API ncclResult_t ncclCommUserRank(ncclComm_t handle, int* rank) {
    const CommunicatorPointer communicator = find(handle);
    if (communicator == nullptr) {
        return ncclInvalidArgument;
    }
    *rank = communicator->rank;
    return ncclSuccess;
}

CUDA_API ncclResult_t ncclCommRegister(ncclComm_t handle, void* buffer, size_t bytes,
                                       void** registration) {
    if (find(handle) == nullptr || registration == nullptr) {
        return ncclInvalidArgument;
    }
    if (!emulated_cuda_is_device_memory(buffer, bytes)) {
        set_last_error("a registered buffer is not device memory");
        return ncclInvalidArgument;
    }
    *registration = new size_t(bytes);
    return ncclSuccess;
}

CUDA_API ncclResult_t ncclCommDeregister(ncclComm_t handle, void* registration) {
    if (find(handle) == nullptr || registration == nullptr) {
        return ncclInvalidArgument;
    }
    delete static_cast<size_t*>(registration);
    return ncclSuccess;
}

// The calls between ncclGroupStart and ncclGroupEnd of a thread.
struct Group {
    int depth = 0;
    std::vector<std::pair<CommunicatorPointer, Collective>> calls;
};

static thread_local Group group;

CUDA_API ncclResult_t ncclGroupStart() {
    group.depth++;
    return ncclSuccess;
}

// The work of a group in the order of its calls: messages of a communicator run together.
static std::vector<std::pair<CommunicatorPointer, Work>> group_work() {
    std::vector<std::pair<CommunicatorPointer, Work>> all;
    for (const auto& [communicator, collective] : group.calls) {
        const Communicator* const own = communicator.get();
        const auto found = std::find_if(all.begin(), all.end(), [&](const auto& work) {
            return work.first.get() == own && work.second[0].call.is_message();
        });
        if (collective.call.is_message() && found != all.end()) {
            found->second.push_back(collective);
        } else {
            all.push_back({communicator, {collective}});
        }
    }
    group.calls.clear();
    return all;
}

static ncclResult_t launch_group() {
    ncclResult_t result = ncclSuccess;
    for (const auto& [communicator, work] : group_work()) {
        const ncclResult_t launched = communicator->launch(work);
        if (launched != ncclSuccess && launched != ncclInProgress) {
            return launched;
        }
        result = launched == ncclInProgress ? ncclInProgress : result;
    }
    return result;
}

CUDA_API ncclResult_t ncclGroupEnd() {
    if (group.depth == 0) {
        set_last_error("ncclGroupEnd without ncclGroupStart");
        return ncclInvalidUsage;
    }
    group.depth--;
    return group.depth == 0 ? launch_group() : ncclSuccess;
}

// A communicator is ready when its earlier calls have completed.
static ncclResult_t ensure_ready(Communicator& communicator) {
    const ncclResult_t state = communicator.poll();
    if (state == ncclInProgress) {
        set_last_error("the communicator's previous operation has not returned ncclSuccess yet");
        return ncclInvalidArgument;
    }
    return state;
}

static ncclResult_t call(ncclComm_t handle, const Call& call, const void* send, void* receive,
                         CUstream stream) {
    const CommunicatorPointer communicator = find(handle);
    if (communicator == nullptr) {
        set_last_error("no communicator, or one that was destroyed");
        return ncclInvalidArgument;
    }
    const ncclResult_t ready = ensure_ready(*communicator);
    if (ready != ncclSuccess) {
        return ready;
    }
    Collective collective = {call, send, receive, stream, nullptr};
    cuCtxGetCurrent(&collective.context);
    const ncclResult_t checked = communicator->check(collective);
    if (checked != ncclSuccess) {
        return checked;
    }
    if (group.depth > 0) {
        group.calls.push_back({communicator, collective});
        return ncclSuccess;
    }
    return communicator->launch({collective});
}

CUDA_API ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count,
                                    ncclDataType_t type, ncclRedOp_t op, ncclComm_t communicator,
                                    CUstream stream) {
    return call(communicator, {Kind::AllReduce, count, type, op, 0}, send, receive, stream);
}

CUDA_API ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count,
                                        ncclDataType_t type, ncclRedOp_t op,
                                        ncclComm_t communicator, CUstream stream) {
    return call(communicator, {Kind::ReduceScatter, count, type, op, 0}, send, receive, stream);
}

CUDA_API ncclResult_t ncclAllGather(const void* send, void* receive, size_t count,
                                    ncclDataType_t type, ncclComm_t communicator,
                                    CUstream stream) {
    return call(communicator, {Kind::AllGather, count, type, ncclSum, 0}, send, receive, stream);
}

CUDA_API ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count,
                                    ncclDataType_t type, int root, ncclComm_t communicator,
                                    CUstream stream) {
    return call(communicator, {Kind::Broadcast, count, type, ncclSum, root}, send, receive, stream);
}

CUDA_API ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                               ncclComm_t communicator, CUstream stream) {
    return call(communicator, {Kind::Send, count, type, ncclSum, peer}, send, nullptr, stream);
}

CUDA_API ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer,
                               ncclComm_t communicator, CUstream stream) {
    return call(communicator, {Kind::Receive, count, type, ncclSum, peer}, nullptr, receive,
                stream);
}
