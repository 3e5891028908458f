// Streams and events: order where there is one, and disorder where there is none.
#include <unistd.h>

#include <cstring>

#include "cuda.h"
#include "harness.h"

static void sleep_in_stream(CUstream stream, int milliseconds) {
    const CUhostFn sleep = [](void* data) { usleep(useconds_t(size_t(data)) * 1000); };
    CHECK_EQUAL(cuLaunchHostFunc(stream, sleep, reinterpret_cast<void*>(size_t(milliseconds))), 0);
}

// How many of 20 times a stream reads what another has not written yet.
static int wrong_reads(bool wait) {
    int wrong = 0;
    const CUstream writer = make_stream();
    const CUstream reader = make_stream();
    for (int i = 0; i < 20; i++) {
        const CUdeviceptr source = allocate(64);
        const CUdeviceptr copy = allocate(64);
        CUevent written = nullptr;
        CHECK_EQUAL(cuEventCreate(&written, EVENT_DISABLE_TIMING), 0);
        CHECK_EQUAL(cuMemsetD8Async(source, 7, 64, writer), 0);
        CHECK_EQUAL(cuEventRecord(written, writer), 0);
        if (wait) {
            CHECK_EQUAL(cuStreamWaitEvent(reader, written, 0), 0);
        }
        CHECK_EQUAL(cuMemcpyDtoDAsync_v2(copy, source, 64, reader), 0);
        wrong += download<char>(copy, 64)[5] != 7;
    }
    return wrong;
}

PASSES(missing_event_wait_shows) {
    setenv("EMULATED_CUDA_DELAY_US", "3000", 1);
    open_device();
    const int wrong = wrong_reads(false);
    printf("     %d of 20 wrong\n", wrong);
    fflush(stdout);
    CHECK(wrong >= 1 && wrong <= 19);
}

PASSES(event_wait_orders) {
    setenv("EMULATED_CUDA_DELAY_US", "3000", 1);
    open_device();
    CHECK_EQUAL(wrong_reads(true), 0);
}

PASSES(forgotten_event_wait_shows) {
    setenv("EMULATED_CUDA_DELAY_US", "3000", 1);
    setenv("EMULATED_CUDA_FORGET_WAITS", "ordinary", 1);
    open_device();
    CHECK(wrong_reads(true) >= 1);
}

PASSES(other_streams_do_not_forget_waits) {
    setenv("EMULATED_CUDA_DELAY_US", "3000", 1);
    setenv("EMULATED_CUDA_FORGET_WAITS", "urgent", 1);
    open_device();
    CHECK_EQUAL(wrong_reads(true), 0);
}

PASSES(page_locked_copies_are_asynchronous) {
    open_device();
    const CUstream stream = make_stream();
    void* memory = nullptr;
    CHECK_EQUAL(cuMemHostAlloc(&memory, 64, 0), 0);
    char* host = static_cast<char*>(memory);
    const CUdeviceptr address = allocate(64);
    sleep_in_stream(stream, 30);
    memset(host, 1, 64);
    CHECK_EQUAL(cuMemcpyHtoDAsync_v2(address, host, 64, stream), 0);
    memset(host, 2, 64);
    CHECK_EQUAL(download<char>(address, 64)[9], 2);
    sleep_in_stream(stream, 30);
    CHECK_EQUAL(cuMemsetD8Async(address, 3, 64, stream), 0);
    CHECK_EQUAL(cuMemcpyDtoHAsync_v2(host, address, 64, stream), 0);
    CHECK_EQUAL(host[9], 2);
    CHECK_EQUAL(cuStreamSynchronize(stream), 0);
    CHECK_EQUAL(host[9], 3);
}

PASSES(pageable_copies_are_staged) {
    open_device();
    const CUstream stream = make_stream();
    const CUdeviceptr address = allocate(64);
    char host[64];
    sleep_in_stream(stream, 30);
    memset(host, 1, 64);
    CHECK_EQUAL(cuMemcpyHtoDAsync_v2(address, host, 64, stream), 0);
    memset(host, 2, 64);
    CHECK_EQUAL(cuMemcpyDtoHAsync_v2(host, address, 64, stream), 0);
    CHECK_EQUAL(host[9], 1);
}

PASSES(events_have_real_times) {
    open_device();
    const CUstream stream = make_stream();
    CUevent start = nullptr;
    CUevent end = nullptr;
    float milliseconds = 0;
    CHECK_EQUAL(cuEventCreate(&start, 0), 0);
    CHECK_EQUAL(cuEventCreate(&end, 0), 0);
    CHECK_EQUAL(cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQUAL(cuEventRecord(start, stream), 0);
    sleep_in_stream(stream, 30);
    CHECK_EQUAL(cuEventRecord(end, stream), 0);
    CHECK_EQUAL(cuEventQuery(end), CUDA_ERROR_NOT_READY);
    CHECK_EQUAL(cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
    CHECK_EQUAL(cuEventSynchronize(end), 0);
    CHECK_EQUAL(cuEventElapsedTime(&milliseconds, start, end), 0);
    CHECK(milliseconds > 29 && milliseconds < 300);
}

PASSES(free_waits_for_the_work) {
    open_device();
    const CUstream stream = make_stream();
    const CUdeviceptr address = allocate(64);
    sleep_in_stream(stream, 30);
    CHECK_EQUAL(cuMemsetD8Async(address, 1, 64, stream), 0);
    CHECK_EQUAL(cuMemFree_v2(address), 0);
    CHECK_EQUAL(cuStreamQuery(stream), CUDA_SUCCESS);
}

PASSES(null_stream_and_blocking_streams_wait_for_each_other) {
    open_device();
    CUstream stream = nullptr;
    CHECK_EQUAL(cuStreamCreate(&stream, 0), 0);
    const CUdeviceptr address = allocate(64);
    sleep_in_stream(stream, 20);
    CHECK_EQUAL(cuMemsetD8Async(address, 1, 64, stream), 0);
    sleep_in_stream(nullptr, 20);
    CHECK_EQUAL(cuMemsetD8Async(address, 2, 64, nullptr), 0);
    CHECK_EQUAL(cuMemsetD8Async(address, 3, 32, stream), 0);
    const std::vector<char> values = download<char>(address, 64);
    CHECK(values[0] == 3 && values[63] == 2);
}
