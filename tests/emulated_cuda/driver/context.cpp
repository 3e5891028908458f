// cuInit, primary contexts, and which context is current in a thread.
#include "context.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "memory.h"
#include "settings.h"

namespace emulated {

static std::atomic<bool> is_initialized{false};
static thread_local CUcontext current = nullptr;

bool initialized() { return is_initialized; }

// The machine's numbers of the devices that CUDA_VISIBLE_DEVICES lists, or of all devices. As with
// the real driver, the list ends at the first that does not exist.
static std::vector<int> visible_devices() {
    const int existing = int(setting("EMULATED_CUDA_DEVICES", 1));
    std::vector<int> devices;
    const char* list = getenv("CUDA_VISIBLE_DEVICES");
    if (list == nullptr) {
        for (int i = 0; i < existing; i++) {
            devices.push_back(i);
        }
        return devices;
    }
    while (*list != '\0') {
        char* end = nullptr;
        const long number = strtol(list, &end, 10);
        if (end == list || number < 0 || number >= existing) {
            break;
        }
        devices.push_back(int(number));
        list = *end == ',' ? end + 1 : end;
    }
    return devices;
}

static std::vector<Context*> make_contexts() {
    std::vector<Context*> contexts;
    for (const int physical : visible_devices()) {
        Context* context = new Context;
        context->device = int(contexts.size());
        context->physical = physical;
        contexts.push_back(context);
    }
    return contexts;
}

static const std::vector<Context*>& contexts() {
    static const auto* const instance = new std::vector<Context*>(make_contexts());
    return *instance;
}

int device_count() { return int(contexts().size()); }

Context* device_context(CUdevice device) {
    return device >= 0 && device < device_count() ? contexts()[size_t(device)] : nullptr;
}

static CUcontext handle_of(Context* context) { return reinterpret_cast<CUcontext>(context); }

// Null for what is no context.
static Context* context_of(CUcontext handle) {
    for (Context* context : contexts()) {
        if (handle_of(context) == handle) {
            return context;
        }
    }
    return nullptr;
}

static bool alive(Context* context) {
    std::lock_guard<std::mutex> lock(context->mutex);
    return context->retained > 0;
}

Context* current_context() {
    Context* context = initialized() ? context_of(current) : nullptr;
    return context != nullptr && alive(context) ? context : nullptr;
}

static std::vector<std::shared_ptr<Stream>> streams_of(Context* context) {
    std::lock_guard<std::mutex> lock(context->mutex);
    std::vector<std::shared_ptr<Stream>> streams = {context->null_stream};
    std::vector<std::weak_ptr<Stream>> existing;
    for (const std::weak_ptr<Stream>& weak : context->streams) {
        if (std::shared_ptr<Stream> stream = weak.lock()) {
            streams.push_back(stream);
            existing.push_back(weak);
        }
    }
    context->streams = existing;
    return streams;
}

void synchronize(Context* context) {
    for (const std::shared_ptr<Stream>& stream : streams_of(context)) {
        stream->last().wait();
    }
}

static std::vector<Point> points_before(const std::shared_ptr<Stream>& stream) {
    std::vector<Point> points;
    if (stream == stream->context->null_stream) {
        for (const std::shared_ptr<Stream>& other : streams_of(stream->context)) {
            if (other != stream && other->blocking) {
                points.push_back(other->last());
            }
        }
    } else if (stream->blocking) {
        const Point last = stream->context->null_stream->last();
        if (!last.reached()) {
            points.push_back(last);
        }
    }
    return points;
}

Point submit(const std::shared_ptr<Stream>& stream, const char* name, std::function<void()> run) {
    return stream->submit({name, std::move(run), points_before(stream)});
}

// Held while a context is made or destroyed: one that is retained meanwhile is a new one.
static std::mutex lifetimes;

static void retain(Context* context) {
    std::lock_guard<std::mutex> lifetime(lifetimes);
    std::lock_guard<std::mutex> lock(context->mutex);
    if (context->retained++ == 0) {
        context->null_stream = Stream::create(context, true, 0);
    }
}

// The last release destroys the context: its memory and its streams.
static CUresult release(Context* context) {
    std::lock_guard<std::mutex> lifetime(lifetimes);
    if (!alive(context)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    {
        std::lock_guard<std::mutex> lock(context->mutex);
        if (context->retained > 1) {
            context->retained--;
            return CUDA_SUCCESS;
        }
    }
    synchronize(context);
    release_all(context->physical);
    std::lock_guard<std::mutex> lock(context->mutex);
    context->retained = 0;
    context->null_stream->close();
    return CUDA_SUCCESS;
}

// The error that EMULATED_CUDA_FAIL_INIT names for the copy of this library in a folder, as in
// "/old:803".
static CUresult planted_error() {
    const char* setting = getenv("EMULATED_CUDA_FAIL_INIT");
    const char* number = setting == nullptr ? nullptr : strrchr(setting, ':');
    if (number == nullptr) {
        return CUDA_SUCCESS;
    }
    Dl_info own = {};
    dladdr(reinterpret_cast<void*>(planted_error), &own);
    const std::string file = own.dli_fname;
    const bool is_named = file.substr(0, file.rfind('/')) == std::string(setting, number);
    return is_named ? CUresult(atoi(number + 1)) : CUDA_SUCCESS;
}

CUDA_API CUresult cuInit(unsigned flags) {
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult error = planted_error();
    if (error != CUDA_SUCCESS) {
        return error;
    }
    if (device_count() == 0) {
        return CUDA_ERROR_NO_DEVICE;
    }
    reserve_arena();
    is_initialized = true;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice device) {
    if (!initialized()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    Context* context = device_context(device);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    retain(context);
    *handle = handle_of(context);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    Context* context = device_context(device);
    return context == nullptr ? CUDA_ERROR_INVALID_DEVICE : release(context);
}

CUDA_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    Context* context = device_context(device);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *flags = 0;
    *active = alive(context);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetCurrent(CUcontext* handle) {
    if (!initialized()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    *handle = current;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxSetCurrent(CUcontext handle) {
    if (!initialized()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (handle == nullptr) {
        current = nullptr;
        return CUDA_SUCCESS;
    }
    Context* context = context_of(handle);
    if (context == nullptr || !alive(context)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    current = handle;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetDevice(CUdevice* device) {
    Context* context = current_context();
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *device = context->device;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxSynchronize() {
    Context* context = current_context();
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    synchronize(context);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxSetFlags(unsigned /*flags*/) {
    return current_context() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    if (current_context() == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
}

CUDA_API int emulated_cuda_physical_device() {
    Context* context = current_context();
    return context == nullptr ? -1 : context->physical;
}

}  // namespace emulated
