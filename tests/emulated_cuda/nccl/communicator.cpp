// The life of a communicator.
#include "communicator.h"

#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "../emulated_cuda.h"
#include "debug_log.h"
#include "reduce.h"
#include "transport_log.h"

CUDA_API CUresult cuCtxGetCurrent(CUcontext* context);
CUDA_API CUresult cuCtxSetCurrent(CUcontext context);
CUDA_API CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes);
CUDA_API CUresult cuMemFree_v2(CUdeviceptr address);

namespace emulated {

static thread_local std::string error_text;

void set_last_error(const char* text) {
    error_text = text;
    log_warning(text);
}

const char* last_error() { return error_text.c_str(); }

static bool shares_devices() {
    const char* enabled = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return enabled != nullptr && strcmp(enabled, "1") == 0;
}

// Ranks of one process that share a device do not wait for each other's turns.
static std::shared_ptr<LaunchOrder> launch_order() {
    return shares_devices() ? std::make_shared<LaunchOrder>()
                            : LaunchOrder::of_device(emulated_cuda_physical_device());
}

Communicator::Communicator(std::shared_ptr<Segment> own, int ranks, int rank, bool blocking)
    : ranks(ranks),
      rank(rank),
      blocking(blocking),
      segment(std::move(own)),
      order(launch_order()),
      sent(size_t(ranks)),
      received(size_t(ranks)) {
    order->add(segment, rank);
}

Communicator::~Communicator() { order->remove(*segment); }

ncclResult_t Communicator::poll_locked() {
    if (error == ncclSuccess && segment->peer_died()) {
        set_last_error("the process of a peer has ended");
        error = ncclRemoteError;
    }
    if (error != ncclSuccess) {
        return error;
    }
    if (!segment->complete()) {
        return ncclInProgress;
    }
    if (!initialized && segment->duplicate_device() && !shares_devices()) {
        set_last_error("Duplicate GPU detected: two ranks use the same device");
        error = ncclInvalidUsage;
        return error;
    }
    initialized = true;
    return ncclSuccess;
}

ncclResult_t Communicator::poll() {
    std::vector<Work> ready;
    {
        std::lock_guard<std::mutex> lock(mutex);
        const ncclResult_t state = poll_locked();
        if (state != ncclSuccess) {
            return state;
        }
        // The first poll after a launch finds it unfinished, as a real communicator's may.
        if (!deferred.empty() && !polled) {
            polled = true;
            return ncclInProgress;
        }
        ready.swap(deferred);
        polled = false;
    }
    const ncclResult_t result = enqueue_all(ready);
    return result == ncclSuccess && finalizing && in_flight > 0 ? ncclInProgress : result;
}

ncclResult_t Communicator::wait_for_ranks() {
    ncclResult_t state = poll();
    while (state == ncclInProgress) {
        usleep(100);
        state = poll();
    }
    return state;
}

ncclResult_t Communicator::check(const Collective& collective) const {
    const Call& call = collective.call;
    if (element_bytes(call.type) == 0 || call.op < ncclSum || call.op > ncclAvg) {
        set_last_error("an element type or operation that is not supported");
        return ncclInvalidArgument;
    }
    if (call.root < 0 || call.root >= ranks) {
        set_last_error("a root or peer that is no rank");
        return ncclInvalidArgument;
    }
    if (aborted || finalizing) {
        set_last_error("the communicator was aborted or finalized");
        return ncclInvalidUsage;
    }
    const size_t bytes = call.count * element_bytes(call.type);
    const size_t all = bytes * size_t(ranks);
    const size_t sent = call.kind == Kind::ReduceScatter ? all : bytes;
    const size_t received = call.kind == Kind::AllGather ? all : bytes;
    const bool sends =
        call.kind != Kind::Receive && (call.kind != Kind::Broadcast || call.root == rank);
    if (bytes > 0 && sends) {
        emulated_cuda_check_range("NCCL, send buffer", collective.send, sent);
    }
    if (bytes > 0 && call.kind != Kind::Send) {
        emulated_cuda_check_range("NCCL, receive buffer", collective.receive, received);
    }
    return ncclSuccess;
}

ncclResult_t Communicator::launch(Work work) {
    if (blocking) {
        return enqueue_all({work});
    }
    std::lock_guard<std::mutex> lock(mutex);
    deferred.push_back(std::move(work));
    return ncclInProgress;
}

ncclResult_t Communicator::enqueue_all(const std::vector<Work>& all) {
    for (const Work& work : all) {
        const ncclResult_t result = enqueue(work);
        if (result != ncclSuccess) {
            std::lock_guard<std::mutex> lock(mutex);
            error = result;
            return result;
        }
    }
    return ncclSuccess;
}

// As much as one channel of NCCL's has: a buffer of the default size.
static const size_t CONNECTION_BYTES = 4 << 20;

// Ranks are connected, which takes memory, when they first communicate.
ncclResult_t Communicator::connect() {
    if (cuMemAlloc_v2(&connections, CONNECTION_BYTES) != CUDA_SUCCESS) {
        set_last_error("Failed to CUDA calloc the buffers of connections: out of memory");
        return ncclUnhandledCudaError;
    }
    cuCtxGetCurrent(&connected);
    log_connections(*segment, ranks, rank);
    is_connected = true;
    return ncclSuccess;
}

void Communicator::disconnect() {
    if (connections == 0) {
        return;
    }
    CUcontext before = nullptr;
    cuCtxGetCurrent(&before);
    cuCtxSetCurrent(connected);
    cuMemFree_v2(connections);
    cuCtxSetCurrent(before);
    connections = 0;
}

ncclResult_t Communicator::enqueue(const Work& work) {
    const std::shared_ptr<Communicator> self = shared_from_this();
    std::lock_guard<std::mutex> lock(launch_mutex);
    CUcontext before = nullptr;
    cuCtxGetCurrent(&before);
    cuCtxSetCurrent(work[0].context);
    const uint64_t sequence = work[0].call.is_message() ? 0 : ++launched;
    const ncclResult_t ready = is_connected ? ncclSuccess : connect();
    if (ready != ncclSuccess) {
        cuCtxSetCurrent(before);
        return ready;
    }
    in_flight++;
    const uint64_t turn = order->take_turn();
    const CUresult submitted = emulated_cuda_enqueue(
        work[0].stream, "an NCCL operation", [self, work, sequence, turn] {
            self->running++;
            if (self->order->wait_for_turn(turn, self->aborted)) {
                self->run(work, sequence);
            }
            self->order->end_turn(turn);
            self->running--;
            self->in_flight--;
        });
    cuCtxSetCurrent(before);
    if (submitted == CUDA_SUCCESS) {
        return ncclSuccess;
    }
    order->end_turn(turn);
    in_flight--;
    set_last_error("the stream of a collective is not valid");
    return ncclUnhandledCudaError;
}

ncclResult_t Communicator::finalize() {
    const ncclResult_t state = blocking ? ncclSuccess : poll();
    if (state != ncclSuccess) {
        return state == ncclInProgress ? ncclInvalidArgument : state;
    }
    finalizing = true;
    if (blocking) {
        wait_until_idle();
    }
    return in_flight > 0 ? ncclInProgress : ncclSuccess;
}

void Communicator::wait_until_idle() {
    while (in_flight > 0) {
        usleep(100);
    }
}

void Communicator::settle() {
    while (initialized && poll() == ncclInProgress) {
        usleep(100);
    }
    wait_until_idle();
}

// Operations that wait in streams for something else do nothing when their turn comes.
void Communicator::abort() {
    aborted = true;
    while (running > 0) {
        usleep(100);
    }
    leave();
}

void Communicator::leave() { segment->state(rank).left = 1; }

}  // namespace emulated
