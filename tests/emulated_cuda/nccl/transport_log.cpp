// Ranks of one machine are connected by SHM, unless EMULATED_CUDA_NCCL_NET says otherwise.
#include "transport_log.h"

#include <cstdlib>
#include <string>

#include "debug_log.h"

namespace emulated {

constexpr int CHANNELS = 2;

// "IB" or "Socket", then the ends without GPUDirect RDMA, as in "IB,0:send,1:receive".
static std::string setting() {
    const char* value = getenv("EMULATED_CUDA_NCCL_NET");
    return value == nullptr ? "" : value;
}

static std::string network() { return setting().substr(0, setting().find(',')); }

static const char* gdr(int rank, const char* side) {
    const std::string end = "," + std::to_string(rank) + ":" + side + ",";
    const bool is_without = (setting() + ",").find(end) != std::string::npos;
    return network() == "IB" && !is_without ? "/GDRDMA" : "";
}

void log_network() {
    if (const char* order = getenv("NCCL_LAUNCH_ORDER_IMPLICIT")) {
        log_info(LOG_ENV, "NCCL_LAUNCH_ORDER_IMPLICIT set by environment to %s.", order);
    }
    if (network() == "IB") {
        log_info(LOG_INIT | LOG_NET, "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB lo:127.0.0.1<0>");
    } else {
        log_info(LOG_INIT | LOG_NET, "NET/IB : No device found.");
        log_info(LOG_INIT | LOG_NET, "NET/Socket : Using [0]lo:127.0.0.1<0>");
    }
    log_info(LOG_INIT, "Using network %s", network() == "IB" ? "IB" : "Socket");
}

// Ranks with their devices, as in "0[0] -> 1[1]".
static std::string pair(Segment& segment, int from, int to) {
    const auto name = [&](int rank) {
        const int device = segment.state(rank).device;
        return std::to_string(rank) + "[" + std::to_string(device) + "]";
    };
    return name(from) + " -> " + name(to);
}

static void log_channel(Segment& segment, int channel, int from, int to, const char* side) {
    const bool sends = side == std::string("send");
    const std::string ranks = pair(segment, from, to);
    if (!network().empty()) {
        log_info(LOG_INIT | LOG_NET, "Channel %02d/0 : %s [%s] via NET/%s/0%s", channel,
                 ranks.c_str(), side, network().c_str(), gdr(sends ? from : to, side));
    } else if (sends) {
        log_info(LOG_INIT | LOG_SHM, "Channel %02d : %s via SHM/direct", channel, ranks.c_str());
    }
}

void log_connections(Segment& segment, int ranks, int rank) {
    if (ranks == 1) {
        return;
    }
    const int next = (rank + 1) % ranks;
    const int previous = (rank + ranks - 1) % ranks;
    for (int channel = 0; channel < CHANNELS; channel++) {
        log_channel(segment, channel, previous, rank, "receive");
        log_channel(segment, channel, rank, next, "send");
    }
    log_info(LOG_INIT, "Connected all rings, use ring PXN 0 GDR %d", network() == "IB" ? 1 : 0);
}

}  // namespace emulated
