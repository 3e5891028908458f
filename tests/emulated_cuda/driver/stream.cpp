// The thread of a stream. Before each operation it sleeps for a random time of up to
// EMULATED_CUDA_DELAY_US, so that operations of different streams that nothing orders run in
// different orders.
#include "stream.h"

#include <thread>
#include <unistd.h>

#include "memory.h"
#include "settings.h"

namespace emulated {

static thread_local const char* operation_name = nullptr;

const char* current_operation() { return operation_name; }

bool Point::reached() const { return stream == nullptr || stream->reached(sequence); }

void Point::wait() const {
    if (stream != nullptr) {
        stream->wait(sequence);
    }
}

static unsigned next_seed() {
    static const size_t seed = setting("EMULATED_CUDA_SEED", std::random_device()());
    static std::mutex mutex;
    static unsigned streams = 0;
    std::lock_guard<std::mutex> lock(mutex);
    return unsigned(seed) + 7919 * ++streams;
}

Stream::Stream(Context* context, bool blocking, int priority)
    : context(context), blocking(blocking), priority(priority), random(next_seed()) {
    // The first numbers of near seeds are near each other.
    random.discard(100);
}

std::shared_ptr<Stream> Stream::create(Context* context, bool blocking, int priority) {
    std::shared_ptr<Stream> stream(new Stream(context, blocking, priority));
    std::thread([stream] { stream->work(); }).detach();
    return stream;
}

// As on hardware: the host blocks where a stream has so many operations to do.
static const size_t QUEUE_MAX = 1024;

Point Stream::submit(Operation operation) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return queue.size() < QUEUE_MAX; });
    queue.push_back(std::move(operation));
    submitted++;
    changed.notify_all();
    return Point{shared_from_this(), submitted};
}

Point Stream::last() {
    std::lock_guard<std::mutex> lock(mutex);
    return Point{shared_from_this(), submitted};
}

bool Stream::reached(uint64_t sequence) {
    std::lock_guard<std::mutex> lock(mutex);
    return completed >= sequence;
}

void Stream::wait(uint64_t sequence) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return completed >= sequence; });
}

void Stream::close() {
    std::lock_guard<std::mutex> lock(mutex);
    closed = true;
    changed.notify_all();
}

void Stream::perform(const Operation& operation) {
    static const size_t delay_us = setting("EMULATED_CUDA_DELAY_US", 0);
    if (delay_us > 0) {
        usleep(useconds_t(random() % (delay_us + 1)));
    }
    for (const Point& point : operation.after) {
        point.wait();
    }
    if (operation.run == nullptr) {
        return;
    }
    operation_name = operation.name;
    {
        MemoryAccess access;
        operation.run();
    }
    operation_name = nullptr;
}

void Stream::work() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
        changed.wait(lock, [&] { return closed || !queue.empty(); });
        if (queue.empty()) {
            return;
        }
        const Operation operation = std::move(queue.front());
        queue.pop_front();
        lock.unlock();
        perform(operation);
        lock.lock();
        completed++;
        changed.notify_all();
    }
}

}  // namespace emulated
