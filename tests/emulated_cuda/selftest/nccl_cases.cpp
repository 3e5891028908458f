// NCCL: ranks as threads of one process and as processes, and what goes wrong between them. Several
// communicators, and ranks that are absent, are in collectives/tests/cuda_nccl_backend.
#include "../nccl/types.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "cuda.h"
#include "harness.h"

typedef struct ncclComm* ncclComm_t;

extern "C" {
int ncclGetUniqueId(ncclUniqueId* id);
int ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                           ncclConfig_t* config);
int ncclCommGetAsyncError(ncclComm_t comm, int* state);
int ncclCommAbort(ncclComm_t comm);
int ncclCommFinalize(ncclComm_t comm);
int ncclCommDestroy(ncclComm_t comm);
int ncclCommRegister(ncclComm_t comm, void* buffer, size_t bytes, void** handle);
int ncclCommDeregister(ncclComm_t comm, void* handle);
int ncclGroupStart();
int ncclGroupEnd();
int ncclAllReduce(const void* send, void* receive, size_t count, int type, int op, ncclComm_t comm,
                  CUstream stream);
int ncclReduceScatter(const void* send, void* receive, size_t count, int type, int op,
                      ncclComm_t comm, CUstream stream);
int ncclAllGather(const void* send, void* receive, size_t count, int type, ncclComm_t comm,
                  CUstream stream);
int ncclSend(const void* send, size_t count, int type, int peer, ncclComm_t comm, CUstream stream);
int ncclRecv(void* receive, size_t count, int type, int peer, ncclComm_t comm, CUstream stream);
}

static ncclConfig_t config(bool blocking) {
    return {sizeof(ncclConfig_t), CONFIG_MAGIC, 23007, blocking};
}

static ncclUniqueId unique_id() {
    ncclUniqueId id;
    CHECK_EQUAL(ncclGetUniqueId(&id), ncclSuccess);
    return id;
}

static void give_devices(int count) {
    setenv("EMULATED_CUDA_DEVICES", std::to_string(count).c_str(), 1);
}

static ncclComm_t join(const ncclUniqueId& id, int ranks, int rank) {
    ncclConfig_t blocking = config(true);
    ncclComm_t comm = nullptr;
    CHECK_EQUAL(ncclCommInitRankConfig(&comm, ranks, id, rank, &blocking), ncclSuccess);
    return comm;
}

// Runs a function for each rank, in threads with a device each.
static void with_threads(int ranks, std::function<void(ncclUniqueId, int)> run) {
    give_devices(ranks);
    const ncclUniqueId id = unique_id();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; rank++) {
        threads.emplace_back([=] {
            open_device(rank);
            run(id, rank);
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

// The same with a process each. A process that ends with anything but 0 fails the case.
static void with_processes(int ranks, std::function<void(ncclUniqueId, int)> run) {
    give_devices(ranks);
    const ncclUniqueId id = unique_id();
    std::vector<pid_t> children;
    for (int rank = 0; rank < ranks; rank++) {
        const pid_t child = fork();
        if (child == 0) {
            open_device(rank);
            run(id, rank);
            _Exit(0);
        }
        children.push_back(child);
    }
    for (const pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        CHECK_EQUAL(status, 0);
    }
}

static CUdeviceptr filled(size_t count, int rank) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++) {
        values[i] = float(i % 1000) + float(rank) * 1000;
    }
    return upload(values);
}

static void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

constexpr int RANKS = 3;
// More than one chunk, and no multiple of one.
constexpr size_t COUNT = 300001;

// All three collectives in a row, the last one in place.
static void collectives(ncclUniqueId id, int rank) {
    const ncclComm_t comm = join(id, RANKS, rank);
    const CUstream stream = make_stream();
    const CUdeviceptr sum = allocate(COUNT * 4);
    const CUdeviceptr mine = filled(COUNT, rank);
    CHECK_EQUAL(ncclAllReduce(pointer(mine), pointer(sum), COUNT, ncclFloat32, ncclSum, comm,
                              stream), ncclSuccess);
    const CUdeviceptr wide = filled(COUNT * RANKS, rank);
    const CUdeviceptr part = allocate(COUNT * 4);
    CHECK_EQUAL(ncclReduceScatter(pointer(wide), pointer(part), COUNT, ncclFloat32, ncclAvg, comm,
                                  stream), ncclSuccess);
    const CUdeviceptr all = allocate(COUNT * RANKS * 4);
    const CUdeviceptr own = all + CUdeviceptr(rank) * COUNT * 4;
    CHECK_EQUAL(cuMemcpyDtoDAsync_v2(own, mine, COUNT * 4, stream), 0);
    CHECK_EQUAL(ncclAllGather(pointer(own), pointer(all), COUNT, ncclFloat32, comm, stream), 0);
    const std::vector<float> sums = download<float>(sum, COUNT);
    const std::vector<float> parts = download<float>(part, COUNT);
    const std::vector<float> gathered = download<float>(all, COUNT * RANKS);
    for (size_t i = 0; i < COUNT; i++) {
        CHECK(sums[i] == float(i % 1000) * 3 + 3000);
        CHECK(parts[i] == float((size_t(rank) * COUNT + i) % 1000) + 1000);
        for (size_t r = 0; r < RANKS; r++) {
            CHECK(gathered[r * COUNT + i] == float(i % 1000) + float(r) * 1000);
        }
    }
    CHECK_EQUAL(ncclCommFinalize(comm), ncclSuccess);
    CHECK_EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

PASSES(collectives_of_processes) { with_processes(RANKS, collectives); }

PASSES(bf16_is_summed_in_bf16) {
    with_threads(2, [](ncclUniqueId id, int rank) {
        const ncclComm_t comm = join(id, 2, rank);
        // 256 + 1 rounds to 256, as there are eight significant bits.
        const uint16_t own = rank == 0 ? 0x4380 : 0x3f80;
        const CUdeviceptr value = upload(std::vector<uint16_t>{own});
        CHECK_EQUAL(ncclAllReduce(pointer(value), pointer(value), 1, ncclBfloat16, ncclSum, comm,
                                  nullptr), ncclSuccess);
        CHECK_EQUAL(download<uint16_t>(value, 1)[0], 0x4380);
        CHECK_EQUAL(ncclCommDestroy(comm), ncclSuccess);
    });
}

PASSES(grouped_collectives_start_at_the_end) {
    with_threads(2, [](ncclUniqueId id, int rank) {
        const ncclComm_t comm = join(id, 2, rank);
        const CUdeviceptr value = upload(std::vector<float>{1});
        void* const buffer = pointer(value);
        CHECK_EQUAL(ncclGroupStart(), ncclSuccess);
        CHECK_EQUAL(ncclAllReduce(buffer, buffer, 1, ncclFloat32, ncclSum, comm, nullptr), 0);
        CHECK_EQUAL(ncclAllReduce(buffer, buffer, 1, ncclFloat32, ncclSum, comm, nullptr), 0);
        CHECK(download<float>(value, 1)[0] == 1);
        CHECK_EQUAL(ncclGroupEnd(), ncclSuccess);
        CHECK(download<float>(value, 1)[0] == 4);
        CHECK_EQUAL(ncclGroupEnd(), ncclInvalidUsage);
    });
}

static int poll(ncclComm_t comm) {
    int state = ncclInProgress;
    while (state == ncclInProgress) {
        CHECK_EQUAL(ncclCommGetAsyncError(comm, &state), ncclSuccess);
        usleep(100);
    }
    return state;
}

PASSES(non_blocking_communicators) {
    with_threads(2, [](ncclUniqueId id, int rank) {
        usleep(useconds_t(rank) * 50000);
        ncclConfig_t non_blocking = config(false);
        ncclComm_t comm = nullptr;
        int state = 0;
        CHECK_EQUAL(ncclCommInitRankConfig(&comm, 2, id, rank, &non_blocking), ncclInProgress);
        const CUdeviceptr value = upload(std::vector<float>{1});
        void* const buffer = pointer(value);
        if (rank == 0) {
            CHECK_EQUAL(ncclCommGetAsyncError(comm, &state), ncclSuccess);
            CHECK_EQUAL(state, ncclInProgress);
            // Too early.
            CHECK_EQUAL(ncclAllReduce(buffer, buffer, 1, ncclFloat32, ncclSum, comm, nullptr),
                        ncclInvalidArgument);
        }
        CHECK_EQUAL(poll(comm), ncclSuccess);
        CHECK_EQUAL(ncclAllReduce(buffer, buffer, 1, ncclFloat32, ncclSum, comm, nullptr),
                    ncclInProgress);
        CHECK_EQUAL(poll(comm), ncclSuccess);
        CHECK(download<float>(value, 1)[0] == 2);
        CHECK_EQUAL(ncclCommFinalize(comm), ncclSuccess);
        CHECK_EQUAL(ncclCommDestroy(comm), ncclSuccess);
        CHECK_EQUAL(ncclCommDestroy(comm), ncclInvalidArgument);
    });
}

PASSES(two_ranks_on_one_device_are_refused) {
    const ncclUniqueId id = unique_id();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; rank++) {
        threads.emplace_back([=] {
            open_device();
            ncclConfig_t blocking = config(true);
            ncclComm_t comm = nullptr;
            CHECK_EQUAL(ncclCommInitRankConfig(&comm, 2, id, rank, &blocking), ncclInvalidUsage);
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

PASSES(two_ranks_share_a_device_on_request) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    const ncclUniqueId id = unique_id();
    std::thread other([=] {
        open_device();
        join(id, 2, 1);
    });
    open_device();
    join(id, 2, 0);
    other.join();
}

ABORTS(mismatched_collectives, "NCCL: rank ") {
    with_threads(2, [](ncclUniqueId id, int rank) {
        const ncclComm_t comm = join(id, 2, rank);
        void* const buffer = pointer(allocate(64));
        if (rank == 0) {
            ncclAllReduce(buffer, buffer, 8, ncclFloat32, ncclSum, comm, nullptr);
            ncclAllGather(buffer, buffer, 8, ncclFloat32, comm, nullptr);
        } else {
            ncclAllGather(buffer, buffer, 8, ncclFloat32, comm, nullptr);
            ncclAllReduce(buffer, buffer, 8, ncclFloat32, ncclSum, comm, nullptr);
        }
        cuCtxSynchronize();
    });
}

ABORTS(collective_behind_an_allocation, "NCCL, receive buffer: ") {
    open_device();
    const ncclComm_t comm = join(unique_id(), 1, 0);
    void* const send = pointer(allocate(64));
    void* const receive = pointer(allocate(32));
    ncclAllReduce(send, receive, 16, ncclFloat32, ncclSum, comm, nullptr);
}

PASSES(dead_peer_is_a_remote_error) {
    give_devices(2);
    const ncclUniqueId id = unique_id();
    const pid_t child = fork();
    if (child == 0) {
        open_device(1);
        join(id, 2, 1);
        for (;;) {
            pause();
        }
    }
    open_device(0);
    const ncclComm_t comm = join(id, 2, 0);
    int state = ncclInternalError;
    CHECK_EQUAL(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    CHECK_EQUAL(state, ncclSuccess);
    void* const buffer = pointer(allocate(64));
    CHECK_EQUAL(ncclAllReduce(buffer, buffer, 8, ncclFloat32, ncclSum, comm, nullptr), 0);
    kill(child, SIGKILL);
    usleep(50000);
    CHECK_EQUAL(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    CHECK_EQUAL(state, ncclRemoteError);
    CHECK_EQUAL(ncclCommAbort(comm), ncclSuccess);
    CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
}

PASSES(buffers_are_registered) {
    open_device();
    const ncclComm_t comm = join(unique_id(), 1, 0);
    void* handle = nullptr;
    float host = 0;
    CHECK_EQUAL(ncclCommRegister(comm, pointer(allocate(64)), 64, &handle), ncclSuccess);
    CHECK_EQUAL(ncclCommDeregister(comm, handle), ncclSuccess);
    CHECK_EQUAL(ncclCommRegister(comm, &host, 4, &handle), ncclInvalidArgument);
}

static void sum(ncclComm_t comm, CUstream stream) {
    void* const buffer = pointer(allocate(64));
    CHECK_EQUAL(ncclAllReduce(buffer, buffer, 8, ncclFloat32, ncclSum, comm, stream), ncclSuccess);
}

// Every rank sends a part to every other, of different lengths, and several to one of them.
static void all_to_all(ncclUniqueId id, int rank) {
    const ncclComm_t comm = join(id, RANKS, rank);
    const CUstream stream = make_stream();
    const auto length = [](int from, int to) { return from == to ? 0 : COUNT * size_t(from) + 7; };
    std::vector<CUdeviceptr> received;
    for (int round = 0; round < 2; round++) {
        const CUdeviceptr own = filled(COUNT * RANKS, rank + 10 * round);
        CHECK_EQUAL(ncclGroupStart(), ncclSuccess);
        for (int peer = 0; peer < RANKS; peer++) {
            received.push_back(allocate(COUNT * RANKS * 4));
            if (peer == rank) {
                continue;
            }
            for (int message = 0; message < 2; message++) {
                void* const to = pointer(received.back() + CUdeviceptr(message) * 4);
                const size_t sent = message == 0 ? length(rank, peer) : 1;
                const size_t taken = message == 0 ? length(peer, rank) : 1;
                CHECK_EQUAL(ncclSend(pointer(own), sent, ncclFloat32, peer, comm, stream), 0);
                CHECK_EQUAL(ncclRecv(to, taken, ncclFloat32, peer, comm, stream), 0);
            }
        }
        CHECK_EQUAL(ncclGroupEnd(), ncclSuccess);
        sum(comm, stream);
    }
    for (int round = 0; round < 2; round++) {
        for (int peer = 0; peer < RANKS; peer++) {
            const size_t count = length(peer, rank);
            const CUdeviceptr from = received[size_t(round * RANKS + peer)];
            const std::vector<float> values = download<float>(from, count);
            for (size_t i = 0; i < count; i++) {
                // The second message, of the first element, comes after the first.
                const size_t index = i == 1 ? 0 : i;
                CHECK(values[i] == float(index % 1000) + float(peer + 10 * round) * 1000);
            }
        }
    }
    CHECK_EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

PASSES(messages_of_processes) { with_processes(RANKS, all_to_all); }

static void send(int to, ncclComm_t comm, CUstream stream, size_t count = 8) {
    CHECK_EQUAL(ncclSend(pointer(allocate(64)), count, ncclFloat32, to, comm, stream), 0);
}

static void receive(int from, ncclComm_t comm, CUstream stream, size_t count = 8) {
    CHECK_EQUAL(ncclRecv(pointer(allocate(64)), count, ncclFloat32, from, comm, stream), 0);
}

// Ranks without messages do not take part.
PASSES(a_message_needs_its_two_ranks) {
    with_threads(RANKS, [](ncclUniqueId id, int rank) {
        const ncclComm_t comm = join(id, RANKS, rank);
        const CUstream stream = make_stream();
        if (rank == 0) {
            send(2, comm, stream, 0);
            send(2, comm, stream);
        } else if (rank == 2) {
            receive(0, comm, stream, 0);
            receive(0, comm, stream);
        }
        CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
        CHECK_EQUAL(ncclSend(nullptr, 0, ncclFloat32, RANKS, comm, stream), ncclInvalidArgument);
    });
}

// Every rank waits for the next one to receive, because the messages are not grouped.
ABORTS(a_ring_of_sends, "launched operations in different orders") {
    with_threads(RANKS, [](ncclUniqueId id, int rank) {
        const ncclComm_t comm = join(id, RANKS, rank);
        send((rank + 1) % RANKS, comm, nullptr);
        receive((rank + RANKS - 1) % RANKS, comm, nullptr);
        cuCtxSynchronize();
    });
}

ABORTS(a_message_before_and_after_a_sum, "launched operations in different orders") {
    with_threads(2, [](ncclUniqueId id, int rank) {
        const ncclComm_t comm = join(id, 2, rank);
        const CUstream stream = make_stream();
        if (rank == 0) {
            send(1, comm, stream);
        }
        sum(comm, stream);
        if (rank == 1) {
            receive(0, comm, stream);
        }
        cuCtxSynchronize();
    });
}
