// A communicator: its life, and collectives and messages as operations of CUDA streams.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "../cuda_abi.h"
#include "launch_order.h"
#include "segment.h"

namespace emulated {

struct Collective {
    Call call;
    const void* send;
    void* receive;
    CUstream stream;
    // Current when the collective was called.
    CUcontext context;
};

// What a stream runs at once: a collective, or the messages of a group.
typedef std::vector<Collective> Work;

class Communicator : public std::enable_shared_from_this<Communicator> {
public:
    Communicator(std::shared_ptr<Segment> segment, int ranks, int rank, bool blocking);
    ~Communicator();

    // As ncclCommGetAsyncError: also moves on what a non-blocking call began.
    ncclResult_t poll();
    // Waits, in a blocking communicator, until all ranks have attached.
    ncclResult_t wait_for_ranks();
    // Gives work to its stream, now or, where non-blocking, at a later poll.
    ncclResult_t launch(Work work);
    // Ends as soon as everything that was launched is done.
    ncclResult_t finalize();
    void wait_until_idle();
    // Waits for everything that was called, before the communicator is destroyed.
    void settle();
    // Ends everything at once.
    void abort();
    void leave();
    // Frees the memory of the connections.
    void disconnect();

    ncclResult_t check(const Collective& collective) const;

    const int ranks;
    const int rank;
    const bool blocking;

private:
    ncclResult_t poll_locked();
    ncclResult_t enqueue(const Work& work);
    ncclResult_t connect();
    ncclResult_t enqueue_all(const std::vector<Work>& all);
    void run(const Work& work, uint64_t sequence);
    void run_collective(const Collective& collective, uint64_t sequence);
    void run_messages(const Work& messages);
    bool announce(const Call& call, uint64_t sequence);
    bool wait_for_calls(const Call& call, uint64_t sequence);
    void compare_calls(const Call& call);
    bool exchange(const Collective& collective);
    bool exchange_chunk(const Collective& collective, size_t first, size_t count);
    void write_chunk(const Collective& collective, size_t first, size_t count);
    void read_chunk(const Collective& collective, size_t first, size_t count);
    void reduce_chunks(const Collective& collective, char* to, size_t offset, size_t count);
    size_t chunk_elements(const Call& call) const;
    // False when the communicator is aborted before the condition holds.
    template <class Condition>
    bool wait_until(Condition condition);
    // Waits until a counter of every rank has a value.
    bool wait_for_all(std::atomic<uint64_t> RankState::*counter, uint64_t value);

    const std::shared_ptr<Segment> segment;
    const std::shared_ptr<LaunchOrder> order;
    std::mutex mutex;
    ncclResult_t error = ncclSuccess;
    bool initialized = false;
    std::atomic<bool> finalizing{false};
    bool polled = false;
    std::vector<Work> deferred;
    // Held while an operation gets its number and its place in a stream.
    std::mutex launch_mutex;
    // Collectives: messages are not numbered among them, as they are of two ranks.
    uint64_t launched = 0;
    bool is_connected = false;
    // Memory of the device, from the first operation on.
    CUdeviceptr connections = 0;
    CUcontext connected = nullptr;
    // Of the operation that runs: there is one at a time.
    uint64_t chunks = 0;
    // Messages to and from each rank so far.
    std::vector<uint64_t> sent;
    std::vector<uint64_t> received;
    // Operations in streams, and those that streams have come to.
    std::atomic<int> in_flight{0};
    std::atomic<int> running{0};
    std::atomic<bool> aborted{false};
};

const char* name_of(Kind kind);

// The text of ncclGetLastError.
void set_last_error(const char* text);
const char* last_error();

}  // namespace emulated
