// Attaching to shared memory, and finding out which peers are alive.
#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulated {

constexpr size_t HEADER_BYTES = (sizeof(SegmentHeader) + 4095) / 4096 * 4096;

static std::string path_of(const ncclUniqueId& id) {
    std::string path = "/dev/shm/emulated-nccl-";
    for (int i = 0; i < 16; i++) {
        char digits[3];
        snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(id.internal[i]));
        path += digits;
    }
    return path;
}

// When a process started, or 0 where there is none or only its exit code is left.
static uint64_t process_start(int pid) {
    char path[40];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE* file = fopen(path, "r");
    if (file == nullptr) {
        return 0;
    }
    char text[1024] = {};
    const size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    // The name, the second field, is in parentheses and may contain anything.
    const char* fields = length > 0 ? strrchr(text, ')') : nullptr;
    char state = 'X';
    unsigned long long start = 0;
    if (fields != nullptr) {
        sscanf(fields + 1,
               " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               &state, &start);
    }
    return state == 'Z' || state == 'X' ? 0 : start;
}

Segment::Segment(std::string path, int ranks) : path(std::move(path)), ranks(ranks) {}

bool Segment::map() {
    const int file = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) {
        return false;
    }
    const size_t pairs = size_t(ranks) * size_t(ranks);
    const size_t of_pair = sizeof(Mailbox) + MESSAGE_CHUNK_BYTES;
    bytes = HEADER_BYTES + size_t(ranks) * CHUNK_BYTES + pairs * of_pair;
    void* memory = MAP_FAILED;
    if (ftruncate(file, off_t(bytes)) == 0) {
        memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    close(file);
    if (memory == MAP_FAILED) {
        return false;
    }
    header = static_cast<SegmentHeader*>(memory);
    return true;
}

ncclResult_t Segment::claim(int rank, int device) {
    int expected_ranks = 0;
    if (!header->ranks.compare_exchange_strong(expected_ranks, ranks) && expected_ranks != ranks) {
        return ncclInvalidArgument;
    }
    RankState& own = header->rank[rank];
    int nobody = 0;
    if (!own.pid.compare_exchange_strong(nobody, getpid())) {
        return ncclInvalidUsage;
    }
    own.process_start = process_start(getpid());
    own.device = device;
    own.identity = uint64_t(getpid()) << 16 | uint64_t(device);
    if (header->attached.fetch_add(1) + 1 == ranks) {
        unlink(path.c_str());
    }
    return ncclSuccess;
}

Segment* Segment::attach(const ncclUniqueId& id, int ranks, int rank, int device,
                         ncclResult_t& error) {
    Segment* segment = new Segment(path_of(id), ranks);
    error = segment->map() ? segment->claim(rank, device) : ncclSystemError;
    if (error != ncclSuccess) {
        delete segment;
        return nullptr;
    }
    return segment;
}

Segment::~Segment() {
    if (header == nullptr) {
        return;
    }
    if (!complete()) {
        unlink(path.c_str());
    }
    munmap(header, bytes);
}

char* Segment::chunk(int rank) {
    return reinterpret_cast<char*>(header) + HEADER_BYTES + size_t(rank) * CHUNK_BYTES;
}

// Behind the chunks of all ranks, those of all pairs.
char* Segment::message_chunk(int from, int to) {
    return chunk(ranks) + (size_t(from) * size_t(ranks) + size_t(to)) * MESSAGE_CHUNK_BYTES;
}

Mailbox& Segment::mailbox(int from, int to) {
    char* const mailboxes = message_chunk(ranks, 0);
    return reinterpret_cast<Mailbox*>(mailboxes)[from * ranks + to];
}

bool Segment::peer_died() const {
    for (int i = 0; i < ranks; i++) {
        const RankState& peer = header->rank[i];
        const int pid = peer.pid;
        const uint64_t start = peer.process_start;
        if (pid != 0 && start != 0 && peer.left == 0 && process_start(pid) != start) {
            return true;
        }
    }
    return false;
}

bool Segment::duplicate_device() const {
    for (int i = 0; i < ranks; i++) {
        for (int j = 0; j < i; j++) {
            if (header->rank[i].device == header->rank[j].device) {
                return true;
            }
        }
    }
    return false;
}

}  // namespace emulated
