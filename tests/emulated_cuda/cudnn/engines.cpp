// Engines of cuDNN 9.28.1, as it offers them for these devices: numbers, settings and bytes of
// workspace were read from its plans.
#include "engines.h"

#include "../emulated_cuda.h"

extern "C" CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device);
extern "C" CUresult cuCtxGetDevice(CUdevice* device);

namespace emulated {

constexpr int64_t FORWARD = 8;
constexpr int64_t FORWARD_HOPPER = 9;
constexpr int64_t FORWARD_BLACKWELL = 10;
constexpr int64_t BACKWARD = 12;
constexpr int64_t BACKWARD_HOPPER = 13;
constexpr int64_t BACKWARD_BLACKWELL = 14;

constexpr int64_t COLUMNS_MAX = 256;

int compute_capability() {
    int major = 0;
    int minor = 0;
    cuDeviceGetAttribute(&major, ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
    cuDeviceGetAttribute(&minor, ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
    return 10 * major + minor;
}

static bool columns_supported(const Attention& attention) {
    return attention.columns() % 8 == 0 && attention.columns() <= COLUMNS_MAX;
}

bool exists(int64_t engine, const Attention& attention) {
    const int generation = compute_capability() / 10;
    if (!columns_supported(attention)) {
        return false;
    }
    switch (engine) {
        case FORWARD: return !attention.is_backward;
        case FORWARD_HOPPER: return !attention.is_backward && generation == 9;
        case FORWARD_BLACKWELL: return !attention.is_backward && generation == 10;
        case BACKWARD: return attention.is_backward;
        case BACKWARD_HOPPER: return attention.is_backward && generation == 9;
        case BACKWARD_BLACKWELL: return attention.is_backward && generation == 10;
        default: return false;
    }
}

static Configuration configuration(int64_t engine, int64_t tile_m, int64_t tile_n) {
    const bool forward = engine < BACKWARD;
    return {engine,
            {{KNOB_TILE_M, tile_m},
             {KNOB_TILE_N, tile_n},
             {KNOB_KERNEL_CFG, forward ? 1 : 2},
             {KNOB_STREAM_K, 0},
             {KNOB_TILE_CGA_M, 0}}};
}

// As the heuristic orders them. No backward among them adds in a fixed order.
std::vector<Configuration> offered(const Attention& attention) {
    const Configuration all[] = {
        configuration(FORWARD_BLACKWELL, 3, 2), configuration(FORWARD_HOPPER, 3, 2),
        configuration(FORWARD, 3, 1),           configuration(BACKWARD_BLACKWELL, 3, 2),
        configuration(BACKWARD_HOPPER, 2, 1),   configuration(BACKWARD, 2, 2),
        configuration(BACKWARD, 2, 1),
    };
    std::vector<Configuration> found;
    for (const Configuration& candidate : all) {
        if (exists(candidate.engine, attention)) {
            found.push_back(candidate);
        }
    }
    return found;
}

static int64_t knob(const Configuration& configuration, int type) {
    const auto found = configuration.knobs.find(type);
    return found == configuration.knobs.end() ? 0 : found->second;
}

static bool has_tiles(const Configuration& configuration, int64_t m, int64_t n) {
    return knob(configuration, KNOB_TILE_M) == m && knob(configuration, KNOB_TILE_N) == n;
}

// Where the gradients of scores are kept, and dq is a product of its own.
static bool keeps_gradients(const Configuration& configuration) {
    const bool generic =
        configuration.engine == BACKWARD || configuration.engine == BACKWARD_HOPPER;
    return generic && knob(configuration, KNOB_STAGES) == 2;
}

static bool is_kernel(const Configuration& configuration) {
    const int64_t stages = knob(configuration, KNOB_STAGES);
    switch (configuration.engine) {
        case BACKWARD: return stages <= 1 || (stages == 2 && has_tiles(configuration, 2, 1));
        case BACKWARD_HOPPER: return has_tiles(configuration, 2, 1) && stages != 3;
        case BACKWARD_BLACKWELL: return has_tiles(configuration, 3, 2) && stages <= 2;
        default: return stages == 0;
    }
}

// What orders the sums of dq.
static int64_t bytes_of_order(const Configuration& configuration, int64_t rows) {
    if (order_of_sums(configuration) == Order::Any) {
        return 0;
    }
    return configuration.engine == BACKWARD_HOPPER ? rows / 8 + 128 : 4 * rows;
}

int64_t workspace_bytes(const Configuration& configuration, const Attention& attention) {
    if (!is_kernel(configuration)) {
        return -1;
    }
    if (!attention.is_backward) {
        return configuration.engine == FORWARD_HOPPER ? 256 : 0;
    }
    const int64_t rows = attention.sequences() * attention.heads() * attention.queries();
    const int64_t shared = attention.group() > 1 ? 4 * rows * attention.columns() : 0;
    const int64_t sums = 4 * rows + 128;
    if (keeps_gradients(configuration)) {
        return 2 * rows * attention.keys() + shared + sums;
    }
    return 4 * rows * attention.columns() + shared + sums + bytes_of_order(configuration, rows);
}

Order order_of_sums(const Configuration& configuration) {
    const int64_t stages = knob(configuration, KNOB_STAGES);
    const bool fixed = configuration.engine < BACKWARD || stages == 2 || stages == 4;
    return fixed ? Order::Fixed : Order::Any;
}

}  // namespace emulated
