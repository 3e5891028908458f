// Streams: a thread each, with a queue of operations.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "../cuda_abi.h"

namespace emulated {

class Stream;
struct Context;

// The end of an operation of a stream.
struct Point {
    std::shared_ptr<Stream> stream;
    uint64_t sequence = 0;

    bool reached() const;
    void wait() const;
};

struct Operation {
    const char* name;
    std::function<void()> run;
    // What has to be complete before.
    std::vector<Point> after;
};

class Stream : public std::enable_shared_from_this<Stream> {
public:
    static std::shared_ptr<Stream> create(Context* context, bool blocking, int priority);

    Point submit(Operation operation);
    // The end of what has been submitted so far.
    Point last();
    bool reached(uint64_t sequence);
    void wait(uint64_t sequence);
    // Lets the thread end once the queue is empty.
    void close();

    Context* const context;
    // Whether it waits for the null stream, and the null stream for it.
    const bool blocking;
    const int priority;

private:
    Stream(Context* context, bool blocking, int priority);
    void work();
    void perform(const Operation& operation);

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Operation> queue;
    uint64_t submitted = 0;
    uint64_t completed = 0;
    bool closed = false;
    std::minstd_rand random;
};

// The name of the operation that this thread executes for a stream, or null.
const char* current_operation();

}  // namespace emulated
