// Allocation, copies and fills, as the driver's functions.
//
// Copies from pageable memory read it at the call, and copies to it have happened when the call
// returns. Page-locked memory is read and written when the stream comes to the copy, so that a
// missing synchronisation shows.
#include <algorithm>
#include <cstring>
#include <vector>

#include "../emulated_cuda.h"
#include "context.h"
#include "host_memory.h"
#include "memory.h"

namespace emulated {

static void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// The error of a call whose stream was not found.
static CUresult stream_error() {
    return current_context() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
}

CUDA_API CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
    Context* context = current_context();
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *total = device_memory_bytes(context->physical);
    *free = *total - used_bytes(context->physical);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
    Context* context = current_context();
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *address = allocate(context->physical, bytes);
    return *address == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

// Waits for all work that may use the memory, as the driver does.
CUDA_API CUresult cuMemFree_v2(CUdeviceptr address) {
    Context* context = current_context();
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (address == 0) {
        return CUDA_SUCCESS;
    }
    if (!is_allocation(address)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    synchronize(context);
    return release(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
    return find_stream(stream) == nullptr ? stream_error() : cuMemAlloc_v2(address, bytes);
}

CUDA_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    if (!is_allocation(address)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return emulated_cuda_enqueue(handle, "cuMemFreeAsync", [=] {
        if (!release(address)) {
            emulated_cuda_violation("cuMemFreeAsync of memory that was freed meanwhile");
        }
    });
}

CUDA_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                                       CUstream handle) {
    static const char* const name = "cuMemcpyHtoDAsync";
    const std::shared_ptr<Stream> stream = find_stream(handle);
    if (stream == nullptr) {
        return stream_error();
    }
    check_range(name, to, bytes);
    check_host_pointer(name, from);
    if (is_page_locked(name, from, bytes)) {
        submit(stream, name, [=] {
            check_range(name, to, bytes);
            memcpy(pointer(to), from, bytes);
        });
        return CUDA_SUCCESS;
    }
    const char* first = static_cast<const char*>(from);
    const auto staged = std::make_shared<std::vector<char>>(first, first + bytes);
    submit(stream, name, [=] {
        check_range(name, to, bytes);
        memcpy(pointer(to), staged->data(), bytes);
    });
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream handle) {
    static const char* const name = "cuMemcpyDtoHAsync";
    const std::shared_ptr<Stream> stream = find_stream(handle);
    if (stream == nullptr) {
        return stream_error();
    }
    check_range(name, from, bytes);
    check_host_pointer(name, to);
    const bool asynchronous = is_page_locked(name, to, bytes);
    const Point done = submit(stream, name, [=] {
        check_range(name, from, bytes);
        memcpy(to, pointer(from), bytes);
    });
    if (!asynchronous) {
        done.wait();
    }
    return CUDA_SUCCESS;
}

static void check_overlap(const char* name, CUdeviceptr a, CUdeviceptr b, size_t bytes) {
    if (a < b + bytes && b < a + bytes) {
        emulated_cuda_violation("%s: source and destination overlap", name);
    }
}

CUDA_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                       CUstream handle) {
    static const char* const name = "cuMemcpyDtoDAsync";
    check_range(name, to, bytes);
    check_range(name, from, bytes);
    check_overlap(name, to, from, bytes);
    return emulated_cuda_enqueue(handle, name, [=] {
        check_range(name, to, bytes);
        check_range(name, from, bytes);
        memcpy(pointer(to), pointer(from), bytes);
    });
}

CUDA_API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes,
                                  CUstream handle) {
    static const char* const name = "cuMemsetD8Async";
    check_range(name, to, bytes);
    return emulated_cuda_enqueue(handle, name, [=] {
        check_range(name, to, bytes);
        memset(pointer(to), value, bytes);
    });
}

CUDA_API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream handle) {
    static const char* const name = "cuMemsetD32Async";
    if (to % sizeof value != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    check_range(name, to, count * sizeof value);
    return emulated_cuda_enqueue(handle, name, [=] {
        check_range(name, to, count * sizeof value);
        unsigned* first = static_cast<unsigned*>(pointer(to));
        std::fill(first, first + count, value);
    });
}

// The synchronous functions use the null stream and wait for it.
static CUresult finish(CUresult submitted) {
    if (submitted != CUDA_SUCCESS) {
        return submitted;
    }
    find_stream(nullptr)->last().wait();
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
    return finish(cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr));
}

CUDA_API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    return finish(cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr));
}

CUDA_API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return finish(cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr));
}

CUDA_API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes) {
    return finish(cuMemsetD8Async(to, value, bytes, nullptr));
}

}  // namespace emulated
