// Device memory. Each allocation has pages of its own, with guard bytes on both sides and a page
// without access behind; the pages of a freed one lose access and their addresses are never used
// again. So a use after free faults, and an overrun meets a guard or faults.
//
// With EMULATED_CUDA_PROTECT=1 the host cannot access device memory either, except while a stream
// executes an operation. It costs a system call per allocation and operation.
#include "memory.h"

#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <vector>

#include "../emulated_cuda.h"
#include "settings.h"
#include "stream.h"

namespace emulated {

constexpr size_t ARENA_BYTES = size_t(1) << 44;
constexpr size_t PAGE_BYTES = 4096;
constexpr size_t GUARD_BYTES = 256;
// Not a number, as floats of any width, so that a sum over a read behind the end shows it.
constexpr uint16_t GUARD_PATTERN = 0x7fc1;
constexpr int POISON_BYTE = 0xff;

struct Allocation {
    size_t bytes;
    int device;
};

struct Arena {
    std::mutex mutex;
    uint64_t start = 0;
    uint64_t next = 0;
    std::map<uint64_t, Allocation> live;
    std::map<uint64_t, Allocation> freed;
    std::map<int, size_t> used;
    bool protect = false;
    // Operations that are executing.
    int accesses = 0;
};

// Never destroyed: streams may still run while the process ends.
static Arena& arena() {
    static Arena* instance = new Arena;
    return *instance;
}

static size_t mapped_bytes(size_t bytes) {
    return (bytes + 2 * GUARD_BYTES + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

static void set_access(uint64_t address, size_t bytes, bool accessible) {
    void* pages = pointer(address - GUARD_BYTES);
    const int protection = accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
    if (mprotect(pages, mapped_bytes(bytes), protection) != 0) {
        emulated_cuda_violation("mprotect failed: %m");
    }
}

// The live or freed allocation that an address lies in or just behind, or null.
static const Allocation* find(const std::map<uint64_t, Allocation>& allocations, uint64_t address,
                              uint64_t& start) {
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin()) {
        return nullptr;
    }
    --after;
    start = after->first;
    return address - start <= after->second.bytes ? &after->second : nullptr;
}

// What lies at an address, for a message.
static const char* describe(uint64_t address) {
    uint64_t start = 0;
    if (find(arena().live, address, start) != nullptr) {
        return "device memory";
    }
    if (find(arena().freed, address, start) != nullptr) {
        return "freed device memory";
    }
    return in_arena(address) ? "device memory outside of any allocation" : "no device memory";
}

static struct sigaction previous_handler;

// A fault in the arena is a violation; any other is left to the handler that was there before.
static void handle_fault(int signal, siginfo_t* information, void* context) {
    const uint64_t address = reinterpret_cast<uint64_t>(information->si_addr);
    if (in_arena(address)) {
        const char* operation = current_operation();
        const char* who = operation != nullptr ? operation : "the host";
        emulated_cuda_violation("%s accesses %s at 0x%llx", who, describe(address),
                                (unsigned long long)address);
    }
    if (previous_handler.sa_flags & SA_SIGINFO) {
        previous_handler.sa_sigaction(signal, information, context);
        return;
    }
    // The instruction is executed again, and faults again.
    sigaction(signal, &previous_handler, nullptr);
}

static void install_handler() {
    struct sigaction action = {};
    action.sa_sigaction = handle_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &previous_handler);
}

void reserve_arena() {
    Arena& own = arena();
    std::lock_guard<std::mutex> lock(own.mutex);
    if (own.start != 0) {
        return;
    }
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* start = mmap(nullptr, ARENA_BYTES, PROT_NONE, flags, -1, 0);
    if (start == MAP_FAILED) {
        emulated_cuda_violation("cannot reserve addresses for device memory: %m");
    }
    // A core file need not have it.
    madvise(start, ARENA_BYTES, MADV_DONTDUMP);
    own.start = reinterpret_cast<uint64_t>(start);
    own.next = own.start + PAGE_BYTES;
    own.protect = setting("EMULATED_CUDA_PROTECT", 0) != 0;
    install_handler();
}

static uint16_t* guard_before(uint64_t address) {
    return static_cast<uint16_t*>(pointer(address - GUARD_BYTES));
}

// The guard behind an allocation goes up to the end of the page.
static unsigned char* guard_behind(uint64_t address, size_t bytes, size_t& guard_bytes) {
    guard_bytes = mapped_bytes(bytes) - GUARD_BYTES - bytes;
    return static_cast<unsigned char*>(pointer(address + bytes));
}

static unsigned char guard_byte(size_t index) {
    return index % 2 == 0 ? GUARD_PATTERN & 0xff : GUARD_PATTERN >> 8;
}

static void write_guards(uint64_t address, size_t bytes) {
    uint16_t* before = guard_before(address);
    for (size_t i = 0; i < GUARD_BYTES / 2; i++) {
        before[i] = GUARD_PATTERN;
    }
    size_t guard_bytes = 0;
    unsigned char* behind = guard_behind(address, bytes, guard_bytes);
    for (size_t i = 0; i < guard_bytes; i++) {
        behind[i] = guard_byte(bytes + i);
    }
}

static void check_guards_of(const char* what, uint64_t address, size_t bytes) {
    const uint16_t* before = guard_before(address);
    for (size_t i = 0; i < GUARD_BYTES / 2; i++) {
        if (before[i] != GUARD_PATTERN) {
            emulated_cuda_violation("%s: something wrote %zu bytes before an allocation of %zu",
                                    what, GUARD_BYTES - 2 * i, bytes);
        }
    }
    size_t guard_bytes = 0;
    const unsigned char* behind = guard_behind(address, bytes, guard_bytes);
    for (size_t i = 0; i < guard_bytes; i++) {
        if (behind[i] != guard_byte(bytes + i)) {
            emulated_cuda_violation("%s: something wrote %zu bytes behind an allocation of %zu",
                                    what, i, bytes);
        }
    }
}

size_t device_memory_bytes(int device) {
    static const size_t bytes = setting("EMULATED_CUDA_MEMORY_BYTES", size_t(8) << 30);
    static const size_t of_second = setting("EMULATED_CUDA_MEMORY_BYTES_1", bytes);
    return device == 1 ? of_second : bytes;
}

size_t used_bytes(int device) {
    std::lock_guard<std::mutex> lock(arena().mutex);
    return arena().used[device];
}

// As the driver, which gives out multiples of 256 bytes.
static size_t charged_bytes(size_t bytes) { return (bytes + 255) / 256 * 256; }

CUdeviceptr allocate(int device, size_t bytes) {
    Arena& own = arena();
    std::lock_guard<std::mutex> lock(own.mutex);
    size_t& used = own.used[device];
    const size_t all = device_memory_bytes(device);
    if (bytes > all || used + charged_bytes(bytes) > all) {
        return 0;
    }
    const uint64_t address = own.next + GUARD_BYTES;
    const uint64_t next = own.next + mapped_bytes(bytes) + PAGE_BYTES;
    if (next > own.start + ARENA_BYTES) {
        emulated_cuda_violation("the addresses of the emulated device are used up");
    }
    own.next = next;
    used += charged_bytes(bytes);
    set_access(address, bytes, true);
    memset(pointer(address), POISON_BYTE, bytes);
    write_guards(address, bytes);
    if (own.protect && own.accesses == 0) {
        set_access(address, bytes, false);
    }
    own.live[address] = Allocation{bytes, device};
    return address;
}

// Gives the pages back; the addresses stay without access.
static void drop_pages(uint64_t address, size_t bytes) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    void* pages = pointer(address - GUARD_BYTES);
    if (mmap(pages, mapped_bytes(bytes), PROT_NONE, flags, -1, 0) == MAP_FAILED) {
        emulated_cuda_violation("cannot release device memory: %m");
    }
}

static void release_locked(uint64_t address) {
    Arena& own = arena();
    const Allocation allocation = own.live[address];
    set_access(address, allocation.bytes, true);
    check_guards_of("a freed allocation", address, allocation.bytes);
    drop_pages(address, allocation.bytes);
    own.used[allocation.device] -= charged_bytes(allocation.bytes);
    own.live.erase(address);
    own.freed[address] = allocation;
}

bool release(CUdeviceptr address) {
    std::lock_guard<std::mutex> lock(arena().mutex);
    if (arena().live.count(address) == 0) {
        return false;
    }
    release_locked(address);
    return true;
}

void release_all(int device) {
    Arena& own = arena();
    std::lock_guard<std::mutex> lock(own.mutex);
    std::vector<uint64_t> addresses;
    for (const auto& [address, allocation] : own.live) {
        if (allocation.device == device) {
            addresses.push_back(address);
        }
    }
    for (const uint64_t address : addresses) {
        release_locked(address);
    }
}

bool is_allocation(CUdeviceptr address) {
    std::lock_guard<std::mutex> lock(arena().mutex);
    return arena().live.count(address) != 0;
}

bool in_arena(uint64_t address) {
    const uint64_t start = arena().start;
    return start != 0 && address >= start && address < start + ARENA_BYTES;
}

static bool in_allocation_locked(uint64_t address, size_t bytes) {
    uint64_t start = 0;
    const Allocation* found = find(arena().live, address, start);
    return found != nullptr && bytes <= found->bytes - (address - start);
}

bool in_allocation(uint64_t address, size_t bytes) {
    std::lock_guard<std::mutex> lock(arena().mutex);
    return in_allocation_locked(address, bytes);
}

void check_range(const char* what, uint64_t address, size_t bytes) {
    std::lock_guard<std::mutex> lock(arena().mutex);
    if (in_allocation_locked(address, bytes)) {
        return;
    }
    uint64_t start = 0;
    const Allocation* found = find(arena().live, address, start);
    if (found != nullptr) {
        emulated_cuda_violation("%s: %zu bytes from byte %llu of an allocation of %zu bytes", what,
                                bytes, (unsigned long long)(address - start), found->bytes);
    }
    emulated_cuda_violation("%s: 0x%llx is %s", what, (unsigned long long)address,
                            describe(address));
}

void check_guards(const char* what, uint64_t address) {
    std::lock_guard<std::mutex> lock(arena().mutex);
    uint64_t start = 0;
    const Allocation* found = find(arena().live, address, start);
    if (found != nullptr) {
        check_guards_of(what, start, found->bytes);
    }
}

static void protect_all(bool accessible) {
    for (const auto& [address, allocation] : arena().live) {
        set_access(address, allocation.bytes, accessible);
    }
}

MemoryAccess::MemoryAccess() {
    Arena& own = arena();
    if (!own.protect) {
        return;
    }
    std::lock_guard<std::mutex> lock(own.mutex);
    if (own.accesses++ == 0) {
        protect_all(true);
    }
}

MemoryAccess::~MemoryAccess() {
    Arena& own = arena();
    if (!own.protect) {
        return;
    }
    std::lock_guard<std::mutex> lock(own.mutex);
    if (--own.accesses == 0) {
        protect_all(false);
    }
}

CUDA_API void emulated_cuda_check_range(const char* what, const void* address, size_t bytes) {
    check_range(what, reinterpret_cast<uint64_t>(address), bytes);
}

CUDA_API bool emulated_cuda_is_device_memory(const void* address, size_t bytes) {
    return in_allocation(reinterpret_cast<uint64_t>(address), bytes);
}

}  // namespace emulated
