// The engine: the threads of a block as fibers, the block's barrier, and the rendezvous of a warp's
// lanes on which every warp operation is built.
//
// All state is static: a kernel is one shared object, and the driver runs one kernel at a time.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

#include "types.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" {
extern char __start_simt_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_simt_shared[] __attribute__((weak, visibility("hidden")));
}

namespace simt {

constexpr int LANES = 32;
constexpr int THREADS_MAX = 1024;
constexpr int WARPS_MAX = THREADS_MAX / LANES;
constexpr size_t STACK_BYTES = 256 << 10;
constexpr size_t DYNAMIC_SHARED_MAX = 227 << 10;
constexpr size_t GUARD_BYTES = 256;
constexpr int GUARD_BYTE = 0xa5;
// As floats, 0xff bytes are not a number, in f32, f64 and bf16.
constexpr int POISON_BYTE = 0xff;
constexpr int COPIES_MAX = 256;

static dim3 thread_index;
static dim3 block_index;
static dim3 block_size;
static dim3 grid_size;
alignas(1024) static unsigned char dynamic_shared[DYNAMIC_SHARED_MAX + GUARD_BYTES];

// A line of a kernel, for messages.
struct Place {
    const char* operation = nullptr;
    const char* file = nullptr;
    int line = 0;
};

enum class State { Ready, AtWarp, AtBlock, Done };

// A cp.async that was started and not waited for.
struct Copy {
    void* to;
    const void* from;
    bool valid;
};

// The copies of one thread, the oldest first. Commits are marked by the number of copies before.
struct Copies {
    int count = 0;
    int groups = 0;
    Copy pending[COPIES_MAX];
    int group_end[COPIES_MAX];
};

// The lanes of a warp that wait for the others of their mask.
struct Warp {
    u32 mask = 0;
    u32 arrived = 0;
    const char* operation = nullptr;
    void* arguments[LANES];
};

struct Fiber {
    void* stack_pointer = nullptr;
    State state = State::Done;
    dim3 thread;
    int lane = 0;
    Warp* warp = nullptr;
    Place place;
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
#endif
};

static Fiber fibers[THREADS_MAX];
static Copies copies[THREADS_MAX];
static Warp warps[WARPS_MAX];
static Fiber* current;
static int threads;
static int live;
static int at_barrier;
static Place barrier;
// The kernel of this launch.
static const char* kernel_name = "?";
static void (*kernel_body)(void** arguments);
static void** kernel_arguments;
// A kernel without barriers and warp operations runs without fibers.
static bool elementwise;

// Of async_copy.h and warpgroup.h, which are built on this file.
static void prepare_proxy(size_t shared_bytes);
static void prepare_warpgroups();
static void check_thread_products();
static void check_warpgroups();

DEV const char* state_text(const Fiber& fiber) {
    switch (fiber.state) {
        case State::Ready: return "can run";
        case State::AtWarp: return "waits for its warp";
        case State::AtBlock: return "waits for its block";
        default: return "has returned";
    }
}

DEV bool same_wait(const Fiber& a, const Fiber& b) {
    if (a.state == State::Done && b.state == State::Done) {
        return true;
    }
    return a.state == b.state && a.place.line == b.place.line && a.place.file == b.place.file;
}

// Where the block's threads are, neighbours together.
static void print_threads() {
    for (int first = 0; first < threads;) {
        int end = first + 1;
        while (end < threads && same_wait(fibers[first], fibers[end])) {
            end++;
        }
        const Fiber& fiber = fibers[first];
        fprintf(stderr, "  threads %d to %d: %s", first, end - 1, state_text(fiber));
        if (fiber.place.file != nullptr && fiber.state != State::Done) {
            const Place& place = fiber.place;
            fprintf(stderr, ", %s at %s:%d", place.operation, place.file, place.line);
        }
        fputc('\n', stderr);
        first = end;
    }
}

[[noreturn]] static void die(const char* what) {
    fprintf(stderr, "emulated CUDA: kernel %s: %s (block %u, %u, %u; thread %u, %u, %u)\n",
            kernel_name, what, block_index.x, block_index.y, block_index.z, thread_index.x,
            thread_index.y, thread_index.z);
    if (!elementwise) {
        print_threads();
    }
    abort();
}

// Saves the registers that a callee keeps, switches the stack, and restores the other side's.
__attribute__((naked, noinline, noipa)) static void switch_stack(void** /*save*/, void* /*load*/) {
    asm("push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
}

static void* scheduler_stack_pointer;
static char* stacks;

DEV char* stack_of(const Fiber* fiber) { return stacks + (fiber - fibers) * STACK_BYTES; }

#if defined(__SANITIZE_ADDRESS__)
static const void* scheduler_stack;
static size_t scheduler_stack_bytes;
static void* scheduler_fake_stack;

DEV void enter(Fiber* fiber) {
    __sanitizer_start_switch_fiber(&scheduler_fake_stack, stack_of(fiber), STACK_BYTES);
    switch_stack(&scheduler_stack_pointer, fiber->stack_pointer);
    __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
}

DEV void leave(Fiber* fiber) {
    void** fake_stack = fiber->state == State::Done ? nullptr : &fiber->fake_stack;
    __sanitizer_start_switch_fiber(fake_stack, scheduler_stack, scheduler_stack_bytes);
    switch_stack(&fiber->stack_pointer, scheduler_stack_pointer);
    __sanitizer_finish_switch_fiber(fiber->fake_stack, &scheduler_stack, &scheduler_stack_bytes);
}

DEV void entered_first() {
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
}
#else
DEV void enter(Fiber* fiber) { switch_stack(&scheduler_stack_pointer, fiber->stack_pointer); }
DEV void leave(Fiber* fiber) { switch_stack(&fiber->stack_pointer, scheduler_stack_pointer); }
DEV void entered_first() {}
#endif

// Runs a fiber until it waits or returns.
DEV void resume(Fiber* fiber) {
    current = fiber;
    thread_index = fiber->thread;
    enter(fiber);
}

// Waits in a fiber until another one makes this one ready again.
DEV void wait_as(State state, const Place& place) {
    Fiber* fiber = current;
    fiber->state = state;
    fiber->place = place;
    leave(fiber);
}

DEV void refuse_elementwise(const char* operation) {
    if (elementwise) {
        char text[160];
        snprintf(text, sizeof text, "%s in a kernel of EXPORT_KERNEL_ELEMENTWISE", operation);
        die(text);
    }
}

static void release_barrier() {
    at_barrier = 0;
    for (int i = 0; i < threads; i++) {
        if (fibers[i].state == State::AtBlock) {
            fibers[i].state = State::Ready;
        }
    }
}

// The barrier of the block. Threads that have returned do not count, as on sm_70 and newer.
DEV void sync_block(const Place& place) {
    refuse_elementwise(place.operation);
    if (at_barrier == 0) {
        barrier = place;
    } else if (barrier.line != place.line || strcmp(barrier.file, place.file) != 0) {
        current->place = place;
        die("divergent barrier: threads of one block meet at different __syncthreads");
    }
    at_barrier++;
    if (at_barrier == live) {
        current->state = State::AtBlock;
        release_barrier();
        return;
    }
    wait_as(State::AtBlock, place);
}

DEV void check_rendezvous(const Fiber& fiber, const Warp& warp, u32 mask, const Place& place) {
    if ((mask >> fiber.lane & 1) == 0) {
        die("a lane calls a warp operation without being in its mask");
    }
    if (warp.arrived == 0) {
        return;
    }
    if (warp.mask != mask || strcmp(warp.operation, place.operation) != 0) {
        current->place = place;
        die("divergent warp: lanes of one warp meet in different warp operations");
    }
}

// Waits for all lanes of the mask. The last one calls `all` with the arguments of each lane, which
// does the work of the whole warp.
template <class Argument, class All>
DEV void rendezvous(u32 mask, const Place& place, Argument& argument, All all) {
    refuse_elementwise(place.operation);
    Fiber* fiber = current;
    Warp& warp = *fiber->warp;
    check_rendezvous(*fiber, warp, mask, place);
    warp.mask = mask;
    warp.operation = place.operation;
    warp.arguments[fiber->lane] = &argument;
    warp.arrived |= 1u << fiber->lane;
    if (warp.arrived != mask) {
        wait_as(State::AtWarp, place);
        return;
    }
    all(reinterpret_cast<Argument**>(warp.arguments));
    warp.arrived = 0;
    Fiber* first = fiber - fiber->lane;
    for (int lane = 0; lane < LANES; lane++) {
        if (mask >> lane & 1) {
            first[lane].state = State::Ready;
        }
    }
}

// What every fiber runs. It never returns: there is nothing to return to.
static void fiber_main() {
    entered_first();
    kernel_body(kernel_arguments);
    if (copies[current - fibers].count > 0) {
        die("a thread returns with a cp.async that it has not waited for");
    }
    check_thread_products();
    current->state = State::Done;
    live--;
    if (live > 0 && at_barrier == live) {
        release_barrier();
    }
    leave(current);
    abort();
}

static void make_stacks() {
    if (stacks != nullptr) {
        return;
    }
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* memory = mmap(nullptr, THREADS_MAX * STACK_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) {
        die("no memory for the stacks of the threads");
    }
    stacks = static_cast<char*>(memory);
}

// Makes a fiber start at the beginning of the kernel. Tops of stacks are staggered: at equal
// offsets they would compete for the same lines of the cache.
DEV void prepare(int index) {
    Fiber& fiber = fibers[index];
    const u32 x = block_size.x;
    const u32 y = block_size.y;
    fiber.thread = dim3{index % x, index / x % y, index / (x * y)};
    fiber.lane = index % LANES;
    fiber.warp = &warps[index / LANES];
    fiber.state = State::Ready;
    fiber.place = Place();
    copies[index].count = 0;
    copies[index].groups = 0;
    void** top = reinterpret_cast<void**>(stack_of(&fiber) + STACK_BYTES - index % 61 * 192);
    // Nothing to return to, the function to start in, and six registers that do not matter.
    top[-1] = nullptr;
    top[-2] = reinterpret_cast<void*>(fiber_main);
    fiber.stack_pointer = top - 8;
}

// 0: ascending order. Else a random but repeatable order of blocks, warps and lanes.
static u32 seed() {
    static const char* text = getenv("EMULATED_CUDA_SEED");
    static const u32 value = text != nullptr ? u32(strtoul(text, nullptr, 10)) : 0;
    return value;
}

static u32 random_number() {
    static u32 state = 12345 + 7919 * seed();
    state = state * 1664525 + 1013904223;
    return state >> 8;
}

// Runs each lane that is ready once. False when none was.
static bool run_lanes(int warp) {
    const u32 start = seed() != 0 ? random_number() : 0;
    const u32 stride = seed() != 0 ? random_number() | 1 : 1;
    bool ran = false;
    for (u32 i = 0; i < LANES; i++) {
        Fiber* fiber = &fibers[warp * LANES + (start + i * stride) % LANES];
        if (fiber->state == State::Ready) {
            resume(fiber);
            ran = true;
        }
    }
    return ran;
}

// Runs a warp until all of its lanes wait for the block, or with a seed for a random while.
static bool run_warp(int warp) {
    bool ran = false;
    while (run_lanes(warp)) {
        ran = true;
        if (seed() != 0 && random_number() % 4 == 0) {
            break;
        }
    }
    return ran;
}

// Not memset, whose checked version would complain about the space between variables.
#if defined(__SANITIZE_ADDRESS__)
__attribute__((no_sanitize_address))
#endif
static void poison_static_shared() {
    const size_t bytes = size_t(__stop_simt_shared - __start_simt_shared);
#if defined(__SANITIZE_ADDRESS__)
    for (volatile char* at = __start_simt_shared; at < __stop_simt_shared; at++) {
        *at = char(POISON_BYTE);
    }
    (void)bytes;
#else
    if (bytes > 0) {
        memset(__start_simt_shared, POISON_BYTE, bytes);
    }
#endif
}

static void prepare_block(size_t shared_bytes) {
    memset(dynamic_shared, POISON_BYTE, shared_bytes);
    memset(dynamic_shared + shared_bytes, GUARD_BYTE, GUARD_BYTES);
    poison_static_shared();
    prepare_proxy(shared_bytes);
    prepare_warpgroups();
    live = threads;
    at_barrier = 0;
    for (int warp = 0; warp * LANES < threads; warp++) {
        warps[warp].arrived = 0;
    }
    for (int i = 0; i < threads; i++) {
        prepare(i);
    }
    for (int i = threads; i % LANES != 0; i++) {
        fibers[i].state = State::Done;
    }
}

static void check_shared_guard(size_t shared_bytes) {
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        if (dynamic_shared[shared_bytes + i] != GUARD_BYTE) {
            die("a write past the dynamic shared memory of the launch");
        }
    }
}

// Runs a block with a fiber for each thread.
static void run_block_of_fibers(size_t shared_bytes) {
    prepare_block(shared_bytes);
    const int warp_count = (threads + LANES - 1) / LANES;
    while (live > 0) {
        const u32 start = seed() != 0 ? random_number() : 0;
        bool ran = false;
        for (int i = 0; i < warp_count; i++) {
            ran |= run_warp(int((start + u32(i)) % u32(warp_count)));
        }
        if (!ran) {
            die("deadlock: a barrier or warp operation that some threads never reach");
        }
    }
    check_warpgroups();
    check_shared_guard(shared_bytes);
}

}  // namespace simt
