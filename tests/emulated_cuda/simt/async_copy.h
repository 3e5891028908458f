// cp.async. The bytes arrive only at the wait, so that a kernel which reads too early reads poison.
//
// wgmma reads through another proxy, which sees a copy only after its thread's fence. Each 16 bytes
// of dynamic shared memory have the thread that still has to fence.
#pragma once

#include <vector>

#include "engine.h"

namespace simt {

constexpr size_t PIECE_BYTES = 16;
// In place of a thread.
constexpr u16 SEEN = 0xffff;
constexpr u16 NOT_WRITTEN = 0xfffe;
constexpr u16 IN_FLIGHT = 0xfffd;
static u16 unfenced_by[DYNAMIC_SHARED_MAX / PIECE_BYTES];
// Pieces that a thread has written since its last fence.
static std::vector<u32> unfenced[THREADS_MAX];

static void prepare_proxy(size_t shared_bytes) {
    for (size_t i = 0; i < shared_bytes / PIECE_BYTES; i++) {
        unfenced_by[i] = NOT_WRITTEN;
    }
    for (int i = 0; i < threads; i++) {
        unfenced[i].clear();
    }
}

DEV bool in_static_shared(const void* address) {
    const char* at = static_cast<const char*>(address);
    return at >= __start_simt_shared && at < __stop_simt_shared;
}

DEV bool in_dynamic_shared(const void* address) {
    const unsigned char* at = static_cast<const unsigned char*>(address);
    return at >= dynamic_shared && at < dynamic_shared + DYNAMIC_SHARED_MAX;
}

DEV void check_shared(const void* address, const char* what) {
    if (!in_dynamic_shared(address) && !in_static_shared(address)) {
        die(what);
    }
}

// The piece of dynamic shared memory at an address.
DEV u32 piece_at(const void* address) {
    return u32((static_cast<const unsigned char*>(address) - dynamic_shared) / PIECE_BYTES);
}

// What a piece waits for before wgmma may read it.
DEV const char* unseen_text(u32 piece) {
    switch (unfenced_by[piece]) {
        case SEEN: return nullptr;
        case NOT_WRITTEN: return "wgmma reads shared memory that no cp.async wrote";
        case IN_FLIGHT: return "wgmma reads shared memory that a cp.async in flight writes";
        default: return "wgmma reads a cp.async without a fence.proxy.async after its wait";
    }
}

DEV void perform(const Copy& copy) {
    if (in_dynamic_shared(copy.to)) {
        const int thread = int(current - fibers);
        unfenced_by[piece_at(copy.to)] = u16(thread);
        unfenced[thread].push_back(piece_at(copy.to));
    }
    if (copy.valid) {
        memcpy(copy.to, copy.from, 16);
    } else {
        memset(copy.to, 0, 16);
    }
}

// Performs the oldest `done` groups of a thread and forgets them.
DEV void finish_groups(Copies& own, int done) {
    const int end = own.group_end[done - 1];
    for (int i = 0; i < end; i++) {
        perform(own.pending[i]);
    }
    own.count -= end;
    own.groups -= done;
    memmove(own.pending, own.pending + end, size_t(own.count) * sizeof(Copy));
    for (int i = 0; i < own.groups; i++) {
        own.group_end[i] = own.group_end[i + done] - end;
    }
}

}  // namespace simt

DEV void cp_async16(void* shared, const void* global, bool valid) {
    simt::refuse_elementwise("cp.async");
    if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % 16 != 0) {
        simt::die("an address of cp.async is not a multiple of 16 bytes");
    }
    simt::check_shared(shared, "cp.async to an address outside of shared memory");
    simt::Copies& own = simt::copies[simt::current - simt::fibers];
    if (own.count == simt::COPIES_MAX) {
        simt::die("more cp.async of one thread in flight than the emulator keeps");
    }
    own.pending[own.count++] = {shared, global, valid};
    if (simt::in_dynamic_shared(shared)) {
        simt::unfenced_by[simt::piece_at(shared)] = simt::IN_FLIGHT;
    }
}

DEV void cp_async_commit() {
    simt::refuse_elementwise("cp.async.commit_group");
    simt::Copies& own = simt::copies[simt::current - simt::fibers];
    if (own.groups == simt::COPIES_MAX) {
        simt::die("more groups of cp.async of one thread in flight than the emulator keeps");
    }
    own.group_end[own.groups++] = own.count;
}

template <int N>
DEV void cp_async_wait() {
    simt::refuse_elementwise("cp.async.wait_group");
    simt::Copies& own = simt::copies[simt::current - simt::fibers];
    if (own.groups > N) {
        simt::finish_groups(own, own.groups - N);
    }
}

DEV void fence_proxy_async() {
    simt::refuse_elementwise("fence.proxy.async");
    const u16 thread = u16(simt::current - simt::fibers);
    for (const u32 piece : simt::unfenced[thread]) {
        if (simt::unfenced_by[piece] == thread) {
            simt::unfenced_by[piece] = simt::SEEN;
        }
    }
    simt::unfenced[thread].clear();
}
