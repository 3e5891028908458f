// cp.async. The bytes arrive only at the wait, so that a kernel which reads too early reads poison.
#pragma once

#include "engine.h"

namespace simt {

DEV bool in_static_shared(const void* address) {
    const char* at = static_cast<const char*>(address);
    return at >= __start_simt_shared && at < __stop_simt_shared;
}

DEV bool in_shared(const void* address) {
    const unsigned char* at = static_cast<const unsigned char*>(address);
    const bool dynamic = at >= dynamic_shared && at < dynamic_shared + DYNAMIC_SHARED_MAX;
    return dynamic || in_static_shared(address);
}

DEV void check_shared(const void* address, const char* what) {
    if (!in_shared(address)) {
        die(what);
    }
}

DEV void perform(const Copy& copy) {
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
