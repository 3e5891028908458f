// The order of a device's operations: those of all its communicators run one after the other, as
// they were launched. Real devices may run some of them at the same time, but need not. So ranks
// that launch operations of several communicators in different orders wait for each other here,
// and that is found.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "segment.h"

namespace emulated {

class LaunchOrder {
public:
    // That of the current device.
    static std::shared_ptr<LaunchOrder> of_device(int device);

    // The next place in the order.
    uint64_t take_turn();
    // Waits until all operations before are over. False when aborted before that.
    bool wait_for_turn(uint64_t turn, const std::atomic<bool>& aborted);
    void end_turn(uint64_t turn);

    // The communicators of the device, whose other ranks see for whom it waits.
    void add(std::shared_ptr<Segment> segment, int rank);
    void remove(const Segment& segment);

private:
    friend class Waiting;
    void publish(const std::vector<uint64_t>& ranks);

    struct Membership {
        std::shared_ptr<Segment> segment;
        int rank;
    };

    std::mutex mutex;
    uint64_t last_turn = 0;
    std::deque<uint64_t> turns;
    std::vector<Membership> memberships;
};

// The wait of a rank for others to call the same collective. Ends the process when one of them
// waits, through others or not, for this rank in another communicator.
class Waiting {
public:
    Waiting(LaunchOrder& order, Segment& segment, int ranks, int rank);
    ~Waiting();

    // The ranks that are missing still.
    void update(const std::vector<int>& missing, const char* collective);

private:
    typedef std::chrono::steady_clock Clock;

    LaunchOrder& order;
    Segment& segment;
    const int ranks;
    const int rank;
    bool published = false;
    Clock::time_point updated;
    Clock::time_point circular_since;
    bool circular = false;
};

}  // namespace emulated
