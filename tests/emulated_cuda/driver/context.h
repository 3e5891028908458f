// Devices, their primary contexts, and the streams of a context.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "../cuda_abi.h"
#include "stream.h"

namespace emulated {

constexpr int COMPUTE_CAPABILITY_MAJOR = 9;
constexpr int COMPUTE_CAPABILITY_MINOR = 0;
constexpr int MULTIPROCESSORS = 4;
constexpr int SHARED_BYTES_DEFAULT = 48 << 10;
constexpr int SHARED_BYTES_OPT_IN = 227 << 10;
constexpr int THREADS_PER_BLOCK_MAX = 1024;

// A device that this process sees, and its primary context.
struct Context {
    // As this process numbers it, and as the machine does.
    int device = 0;
    int physical = 0;

    std::mutex mutex;
    int retained = 0;
    std::shared_ptr<Stream> null_stream;
    std::vector<std::weak_ptr<Stream>> streams;
};

bool initialized();
// Null where there is no such device.
Context* device_context(CUdevice device);
int device_count();

// The current context of the thread, or null where there is none or it was released.
Context* current_context();

// A stream of the current context: null and 1 are its null stream. Else null.
std::shared_ptr<Stream> find_stream(CUstream handle);

// Appends an operation to a stream. The null stream and blocking streams wait for each other.
Point submit(const std::shared_ptr<Stream>& stream, const char* name, std::function<void()> run);

// Waits for everything submitted to the context.
void synchronize(Context* context);

}  // namespace emulated
