// Collectives: chunk by chunk, every rank writes to its shared memory, waits for the others, and
// reads what it needs from theirs. Sums are in the order of ranks, so all ranks have the same bits.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "../emulated_cuda.h"
#include "communicator.h"
#include "reduce.h"

namespace emulated {

template <class Condition>
bool Communicator::wait_until(Condition condition) {
    constexpr int YIELDS = 100;
    for (int i = 0; !condition(); i++) {
        if (aborted) {
            return false;
        }
        if (i < YIELDS) {
            sched_yield();
        } else {
            usleep(50);
        }
    }
    return !aborted;
}

bool Communicator::wait_for_all(std::atomic<uint64_t> RankState::*counter, uint64_t value) {
    return wait_until([=] {
        for (int i = 0; i < ranks; i++) {
            if (segment->state(i).*counter < value) {
                return false;
            }
        }
        return true;
    });
}

const char* name_of(Kind kind) {
    switch (kind) {
        case Kind::AllReduce: return "ncclAllReduce";
        case Kind::ReduceScatter: return "ncclReduceScatter";
        case Kind::Broadcast: return "ncclBroadcast";
        case Kind::Send: return "ncclSend";
        case Kind::Receive: return "ncclRecv";
        default: return "ncclAllGather";
    }
}

void Communicator::compare_calls(const Call& call) {
    for (int i = 0; i < ranks; i++) {
        const Call other = segment->state(i).call;
        if (!(other == call)) {
            emulated_cuda_violation(
                "NCCL: rank %d of %d calls %s of %zu elements (type %d, operation %d, root %d), "
                "but rank %d calls %s of %zu elements (type %d, operation %d, root %d)",
                rank, ranks, name_of(call.kind), call.count, call.type, call.op, call.root, i,
                name_of(other.kind), other.count, other.type, other.op, other.root);
        }
    }
}

bool Communicator::wait_for_calls(const Call& call, uint64_t sequence) {
    Waiting waiting(*order, *segment, ranks, rank);
    return wait_until([&] {
        std::vector<int> missing;
        for (int i = 0; i < ranks; i++) {
            if (segment->state(i).announced < sequence) {
                missing.push_back(i);
            }
        }
        waiting.update(missing, name_of(call.kind));
        return missing.empty();
    });
}

// Waits for the operations before, and then until all ranks have called this one.
bool Communicator::announce(const Call& call, uint64_t sequence) {
    if (!wait_for_all(&RankState::completed, sequence - 1)) {
        return false;
    }
    RankState& own = segment->state(rank);
    own.call = call;
    own.announced = sequence;
    if (!wait_for_calls(call, sequence)) {
        return false;
    }
    compare_calls(call);
    return true;
}

void Communicator::run(const Work& work, uint64_t sequence) {
    for (const Collective& collective : work) {
        if (aborted || check(collective) == ncclInvalidArgument) {
            return;
        }
    }
    if (work[0].call.is_message()) {
        run_messages(work);
    } else {
        run_collective(work[0], sequence);
    }
}

void Communicator::run_collective(const Collective& collective, uint64_t sequence) {
    if (announce(collective.call, sequence) && exchange(collective)) {
        segment->state(rank).completed = sequence;
    }
}

// Elements of each rank's part that are exchanged at once.
size_t Communicator::chunk_elements(const Call& call) const {
    const size_t parts = call.kind == Kind::ReduceScatter ? size_t(ranks) : 1;
    return CHUNK_BYTES / parts / element_bytes(call.type);
}

bool Communicator::exchange(const Collective& collective) {
    const size_t at_once = chunk_elements(collective.call);
    for (size_t first = 0; first < collective.call.count; first += at_once) {
        const size_t count = std::min(at_once, collective.call.count - first);
        if (!exchange_chunk(collective, first, count)) {
            return false;
        }
    }
    return true;
}

bool Communicator::exchange_chunk(const Collective& collective, size_t first, size_t count) {
    if (!wait_for_all(&RankState::read, chunks)) {
        return false;
    }
    chunks++;
    write_chunk(collective, first, count);
    segment->state(rank).written = chunks;
    if (!wait_for_all(&RankState::written, chunks)) {
        return false;
    }
    read_chunk(collective, first, count);
    segment->state(rank).read = chunks;
    return true;
}

// For a reduce-scatter, one part after the other for each rank that receives it.
void Communicator::write_chunk(const Collective& collective, size_t first, size_t count) {
    const Call& call = collective.call;
    if (call.kind == Kind::Broadcast && call.root != rank) {
        return;
    }
    const size_t bytes = element_bytes(call.type);
    const int parts = call.kind == Kind::ReduceScatter ? ranks : 1;
    const char* send = static_cast<const char*>(collective.send);
    for (int part = 0; part < parts; part++) {
        const size_t start = size_t(part) * call.count + first;
        char* to = segment->chunk(rank) + size_t(part) * count * bytes;
        memcpy(to, send + start * bytes, count * bytes);
    }
}

// Reduces the elements that every rank has at an offset of its chunk.
void Communicator::reduce_chunks(const Collective& collective, char* to, size_t offset,
                                 size_t count) {
    const Call& call = collective.call;
    memcpy(to, segment->chunk(0) + offset, count * element_bytes(call.type));
    for (int i = 1; i < ranks; i++) {
        accumulate(call.type, call.op, to, segment->chunk(i) + offset, count);
    }
    if (call.op == ncclAvg) {
        finish_average(call.type, to, count, ranks);
    }
}

void Communicator::read_chunk(const Collective& collective, size_t first, size_t count) {
    const Call& call = collective.call;
    const size_t bytes = element_bytes(call.type);
    char* receive = static_cast<char*>(collective.receive) + first * bytes;
    if (call.kind == Kind::AllReduce) {
        reduce_chunks(collective, receive, 0, count);
    } else if (call.kind == Kind::ReduceScatter) {
        reduce_chunks(collective, receive, size_t(rank) * count * bytes, count);
    } else if (call.kind == Kind::Broadcast) {
        memcpy(receive, segment->chunk(call.root), count * bytes);
    } else {
        for (int i = 0; i < ranks; i++) {
            memcpy(receive + size_t(i) * call.count * bytes, segment->chunk(i), count * bytes);
        }
    }
}

}  // namespace emulated
