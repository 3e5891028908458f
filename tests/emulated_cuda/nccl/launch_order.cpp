// Turns of a device's operations, and the search for circles of ranks that wait for each other.
//
// Every rank that waits publishes, in all of its communicators, for whom it waits: the ranks that
// have not called, and all for whom these wait. A rank that finds itself among them is in a circle.
// What ranks publish is old for a moment after their waits have ended, so a circle has to last.
#include "launch_order.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "../emulated_cuda.h"

namespace emulated {

std::shared_ptr<LaunchOrder> LaunchOrder::of_device(int device) {
    static std::mutex mutex;
    static auto* const orders = new std::map<int, std::shared_ptr<LaunchOrder>>;
    std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<LaunchOrder>& order = (*orders)[device];
    if (order == nullptr) {
        order = std::make_shared<LaunchOrder>();
    }
    return order;
}

uint64_t LaunchOrder::take_turn() {
    std::lock_guard<std::mutex> lock(mutex);
    turns.push_back(++last_turn);
    return last_turn;
}

bool LaunchOrder::wait_for_turn(uint64_t turn, const std::atomic<bool>& aborted) {
    while (!aborted) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            if (turns.front() == turn) {
                return true;
            }
        }
        usleep(50);
    }
    return false;
}

void LaunchOrder::end_turn(uint64_t turn) {
    std::lock_guard<std::mutex> lock(mutex);
    turns.erase(std::find(turns.begin(), turns.end(), turn));
}

void LaunchOrder::add(std::shared_ptr<Segment> segment, int rank) {
    std::lock_guard<std::mutex> lock(mutex);
    memberships.push_back({std::move(segment), rank});
}

void LaunchOrder::remove(const Segment& segment) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto is_of_segment = [&](const Membership& member) {
        return member.segment.get() == &segment;
    };
    memberships.erase(std::remove_if(memberships.begin(), memberships.end(), is_of_segment),
                      memberships.end());
}

void LaunchOrder::publish(const std::vector<uint64_t>& ranks) {
    std::lock_guard<std::mutex> lock(mutex);
    const size_t count = std::min(ranks.size(), size_t(RANKS_MAX));
    for (const Membership& member : memberships) {
        RankState& own = member.segment->state(member.rank);
        for (size_t i = 0; i < count; i++) {
            own.waits_for[i] = ranks[i];
        }
        own.waits = int(count);
    }
}

Waiting::Waiting(LaunchOrder& order, Segment& segment, int ranks, int rank)
    : order(order), segment(segment), ranks(ranks), rank(rank) {}

Waiting::~Waiting() {
    if (published) {
        order.publish({});
    }
}

static void insert(std::vector<uint64_t>& set, uint64_t rank) {
    if (std::find(set.begin(), set.end(), rank) == set.end()) {
        set.push_back(rank);
    }
}

void Waiting::update(const std::vector<int>& missing, const char* collective) {
    constexpr auto INTERVAL = std::chrono::milliseconds(1);
    constexpr auto CIRCULAR_AT_LEAST = std::chrono::seconds(1);
    const Clock::time_point now = Clock::now();
    if (missing.empty() || now - updated < INTERVAL) {
        return;
    }
    updated = now;
    std::vector<uint64_t> waits_for;
    int other = -1;
    const uint64_t self = segment.state(rank).identity;
    for (const int peer : missing) {
        const RankState& state = segment.state(peer);
        insert(waits_for, state.identity);
        for (int i = 0; i < state.waits; i++) {
            insert(waits_for, state.waits_for[i]);
            other = state.waits_for[i] == self ? peer : other;
        }
    }
    order.publish(waits_for);
    published = true;
    if (other < 0) {
        circular = false;
        return;
    }
    circular_since = circular ? circular_since : now;
    circular = true;
    if (now - circular_since >= CIRCULAR_AT_LEAST) {
        emulated_cuda_violation(
            "NCCL: rank %d of %d waits in %s for rank %d, which waits for it in another operation "
            "or communicator: the ranks launched operations in different orders",
            rank, ranks, collective, other);
    }
}

}  // namespace emulated
