// Streams and events, as the driver's functions.
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <string>

#include "../emulated_cuda.h"
#include "context.h"
#include "registry.h"

namespace emulated {

static Registry<CUstream, Stream>& streams() {
    static auto* const registry = new Registry<CUstream, Stream>;
    return *registry;
}

// The value of CU_STREAM_LEGACY.
static CUstream legacy_stream() { return reinterpret_cast<CUstream>(uintptr_t(1)); }

std::shared_ptr<Stream> find_stream(CUstream handle) {
    Context* context = current_context();
    if (context == nullptr) {
        return nullptr;
    }
    if (handle == nullptr || handle == legacy_stream()) {
        return context->null_stream;
    }
    std::shared_ptr<Stream> stream = streams().find(handle);
    return stream != nullptr && stream->context == context ? stream : nullptr;
}

// The error of a call whose stream was not found.
static CUresult stream_error() {
    return current_context() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
}

CUDA_API CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned flags, int priority) {
    Context* context = current_context();
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (flags > STREAM_NON_BLOCKING) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool blocking = flags != STREAM_NON_BLOCKING;
    const std::shared_ptr<Stream> stream = Stream::create(context, blocking, priority);
    std::lock_guard<std::mutex> lock(context->mutex);
    context->streams.push_back(stream);
    *handle = streams().add(stream);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamCreate(CUstream* handle, unsigned flags) {
    return cuStreamCreateWithPriority(handle, flags, 0);
}

// Returns at once, as the driver does; the stream ends after what was submitted.
CUDA_API CUresult cuStreamDestroy_v2(CUstream handle) {
    const std::shared_ptr<Stream> stream = streams().remove(handle);
    if (stream == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    stream->close();
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamSynchronize(CUstream handle) {
    const std::shared_ptr<Stream> stream = find_stream(handle);
    if (stream == nullptr) {
        return stream_error();
    }
    stream->last().wait();
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamQuery(CUstream handle) {
    const std::shared_ptr<Stream> stream = find_stream(handle);
    if (stream == nullptr) {
        return stream_error();
    }
    return stream->last().reached() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUDA_API CUresult cuStreamGetPriority(CUstream handle, int* priority) {
    const std::shared_ptr<Stream> stream = find_stream(handle);
    if (stream == nullptr) {
        return stream_error();
    }
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
    const std::shared_ptr<Stream> stream = find_stream(handle);
    if (stream == nullptr) {
        return stream_error();
    }
    *flags = stream->blocking ? 0u : unsigned(STREAM_NON_BLOCKING);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamIsCapturing(CUstream handle, int* status) {
    if (find_stream(handle) == nullptr) {
        return stream_error();
    }
    *status = 0;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
    return emulated_cuda_enqueue(handle, "a host function", [=] { function(data); });
}

CUDA_API CUresult emulated_cuda_enqueue(CUstream handle, const char* name,
                                        std::function<void()> run) {
    const std::shared_ptr<Stream> stream = find_stream(handle);
    if (stream == nullptr) {
        return stream_error();
    }
    submit(stream, name, std::move(run));
    return CUDA_SUCCESS;
}

// One cuEventRecord. The time is set when the stream comes to it.
struct Record {
    Point point;
    std::atomic<int64_t> time_ns{0};
};

struct Event {
    Context* context = nullptr;
    bool timing = true;
    std::mutex mutex;
    std::shared_ptr<Record> record;

    std::shared_ptr<Record> recorded() {
        std::lock_guard<std::mutex> lock(mutex);
        return record;
    }
};

static Registry<CUevent, Event>& events() {
    static auto* const registry = new Registry<CUevent, Event>;
    return *registry;
}

static int64_t now_ns() {
    timespec time = {};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
}

CUDA_API CUresult cuEventCreate(CUevent* handle, unsigned flags) {
    Context* context = current_context();
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if ((flags & ~unsigned(EVENT_FLAGS)) != 0 || (flags & EVENT_INTERPROCESS) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto event = std::make_shared<Event>();
    event->context = context;
    event->timing = (flags & EVENT_DISABLE_TIMING) == 0;
    *handle = events().add(event);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventDestroy_v2(CUevent handle) {
    return events().remove(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUDA_API CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
    const std::shared_ptr<Event> event = events().find(handle);
    const std::shared_ptr<Stream> stream = find_stream(stream_handle);
    if (stream == nullptr) {
        return stream_error();
    }
    if (event == nullptr || event->context != stream->context) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    auto record = std::make_shared<Record>();
    std::lock_guard<std::mutex> lock(event->mutex);
    record->point = submit(stream, "an event", [record] { record->time_ns = now_ns(); });
    event->record = record;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    return flags == 0 ? cuEventRecord(event, stream) : CUDA_ERROR_INVALID_VALUE;
}

// Whether EMULATED_CUDA_FORGET_WAITS makes a stream ignore events: "urgent" streams, which have a
// priority, or the "ordinary" ones.
static bool forgets_waits(const Stream& stream) {
    static const std::string forgetful = [] {
        const char* text = getenv("EMULATED_CUDA_FORGET_WAITS");
        const std::string kind = text == nullptr ? "" : text;
        if (!kind.empty() && kind != "urgent" && kind != "ordinary") {
            emulated_cuda_violation("EMULATED_CUDA_FORGET_WAITS is \"%s\"", text);
        }
        return kind;
    }();
    return forgetful == (stream.priority < 0 ? "urgent" : "ordinary");
}

// Of another context's event, too: that is how devices wait for each other.
CUDA_API CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags) {
    const std::shared_ptr<Event> event = events().find(handle);
    const std::shared_ptr<Stream> stream = find_stream(stream_handle);
    if (stream == nullptr) {
        return stream_error();
    }
    if (event == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::shared_ptr<Record> record = event->recorded();
    if (record != nullptr && !forgets_waits(*stream)) {
        stream->submit({"a wait for an event", nullptr, {record->point}});
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventQuery(CUevent handle) {
    const std::shared_ptr<Event> event = events().find(handle);
    if (event == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const std::shared_ptr<Record> record = event->recorded();
    const bool reached = record == nullptr || record->point.reached();
    return reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUDA_API CUresult cuEventSynchronize(CUevent handle) {
    const std::shared_ptr<Event> event = events().find(handle);
    if (event == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (const std::shared_ptr<Record> record = event->recorded()) {
        record->point.wait();
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start_handle,
                                        CUevent end_handle) {
    const std::shared_ptr<Event> start = events().find(start_handle);
    const std::shared_ptr<Event> end = events().find(end_handle);
    if (start == nullptr || end == nullptr || !start->timing || !end->timing) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const std::shared_ptr<Record> first = start->recorded();
    const std::shared_ptr<Record> last = end->recorded();
    if (first == nullptr || last == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!first->point.reached() || !last->point.reached()) {
        return CUDA_ERROR_NOT_READY;
    }
    *milliseconds = float(double(last->time_ns - first->time_ns) * 1e-6);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

}  // namespace emulated
