// cuMemHostAlloc and cuMemFreeHost. The memory is poisoned, as device memory is.
#include "host_memory.h"

#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>

#include "../emulated_cuda.h"
#include "context.h"
#include "memory.h"

namespace emulated {

struct PageLocked {
    std::mutex mutex;
    std::map<uint64_t, size_t> blocks;
};

static PageLocked& page_locked() {
    static auto* const instance = new PageLocked;
    return *instance;
}

bool is_page_locked(const char* what, const void* address, size_t bytes) {
    const uint64_t start = reinterpret_cast<uint64_t>(address);
    PageLocked& own = page_locked();
    std::lock_guard<std::mutex> lock(own.mutex);
    auto block = own.blocks.upper_bound(start);
    if (block == own.blocks.begin()) {
        return false;
    }
    --block;
    const uint64_t offset = start - block->first;
    if (offset >= block->second) {
        return false;
    }
    if (bytes > block->second - offset) {
        emulated_cuda_violation("%s: %zu bytes from byte %llu of page-locked memory of %zu bytes",
                                what, bytes, (unsigned long long)offset, block->second);
    }
    return true;
}

void check_host_pointer(const char* what, const void* address) {
    if (in_arena(reinterpret_cast<uint64_t>(address))) {
        emulated_cuda_violation("%s: the host's pointer %p lies in device memory", what, address);
    }
}

CUDA_API CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
    if (current_context() == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (bytes == 0 || flags > HOST_ALLOC_FLAGS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const int protection = PROT_READ | PROT_WRITE;
    void* memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memset(memory, 0xff, bytes);
    PageLocked& own = page_locked();
    std::lock_guard<std::mutex> lock(own.mutex);
    own.blocks[reinterpret_cast<uint64_t>(memory)] = bytes;
    *address = memory;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemAllocHost_v2(void** address, size_t bytes) {
    return cuMemHostAlloc(address, bytes, 0);
}

// Waits for all work, as the driver does.
CUDA_API CUresult cuMemFreeHost(void* address) {
    Context* context = current_context();
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    synchronize(context);
    PageLocked& own = page_locked();
    std::lock_guard<std::mutex> lock(own.mutex);
    const auto block = own.blocks.find(reinterpret_cast<uint64_t>(address));
    if (block == own.blocks.end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    munmap(address, block->second);
    own.blocks.erase(block);
    return CUDA_SUCCESS;
}

}  // namespace emulated
