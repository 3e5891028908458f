// The memory that the ranks of a communicator share: a file in /dev/shm, named by the unique id and
// removed as soon as all ranks have it. A file of zeros is a valid start, so no rank must be first.
#pragma once

#include <atomic>
#include <string>

#include "types.h"

namespace emulated {

constexpr int RANKS_MAX = 64;
constexpr size_t CHUNK_BYTES = size_t(1) << 20;

// Of a message, what is sent at once.
constexpr size_t MESSAGE_CHUNK_BYTES = size_t(64) << 10;

enum class Kind : int {
    AllReduce = 1,
    ReduceScatter = 2,
    AllGather = 3,
    Broadcast = 4,
    Send = 5,
    Receive = 6,
};

// What all ranks have to agree on, or both ends of a message.
struct Call {
    Kind kind;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    // Of a broadcast; of a message, the other end.
    int root;

    bool is_message() const { return kind == Kind::Send || kind == Kind::Receive; }

    bool operator==(const Call& other) const {
        return kind == other.kind && count == other.count && type == other.type &&
               op == other.op && root == other.root;
    }
};

// One rank's part. The counters only increase.
struct RankState {
    // 0 until the rank has attached.
    std::atomic<int> pid;
    std::atomic<uint64_t> process_start;
    std::atomic<int> device;
    std::atomic<int> left;
    // The process and its device, the same in all communicators.
    std::atomic<uint64_t> identity;
    // Identities of those for whom the rank waits now, in whatever communicator.
    std::atomic<int> waits;
    std::atomic<uint64_t> waits_for[RANKS_MAX];
    // Operations announced in `call`, and completed.
    std::atomic<uint64_t> announced;
    std::atomic<uint64_t> completed;
    Call call;
    // Chunks that the rank has written, and has read from all others.
    std::atomic<uint64_t> written;
    std::atomic<uint64_t> read;
};

// The messages from one rank to another, one after the other. The counters only increase.
struct Mailbox {
    // Messages that an end has come to, and what it calls.
    std::atomic<uint64_t> sending;
    std::atomic<uint64_t> receiving;
    Call sent;
    Call received;
    // Chunks of all messages.
    std::atomic<uint64_t> written;
    std::atomic<uint64_t> read;
    // Messages that were received.
    std::atomic<uint64_t> completed;
};

struct SegmentHeader {
    std::atomic<int> ranks;
    std::atomic<int> attached;
    RankState rank[RANKS_MAX];
};

class Segment {
public:
    // Null with an error where the ranks do not fit together.
    static Segment* attach(const ncclUniqueId& id, int ranks, int rank, int device,
                           ncclResult_t& error);
    ~Segment();
    Segment(const Segment&) = delete;

    bool complete() const { return header->attached == ranks; }
    RankState& state(int rank) { return header->rank[rank]; }
    char* chunk(int rank);
    Mailbox& mailbox(int from, int to);
    char* message_chunk(int from, int to);
    // Whether a process that attached has ended without leaving.
    bool peer_died() const;
    bool duplicate_device() const;

private:
    Segment(std::string path, int ranks);
    bool map();
    ncclResult_t claim(int rank, int device);

    std::string path;
    int ranks;
    size_t bytes = 0;
    SegmentHeader* header = nullptr;
};

}  // namespace emulated
