// Layouts of fragments as CUTLASS writes them, and matrices to fill them with.
#pragma once

#include <cstring>
#include <random>
#include <vector>

struct Mode {
    int shape;
    int stride;
};

// In CUTLASS's notation (shape):(stride) of lanes and of a lane's values. An index is divided
// among its modes, the first of which runs fastest, and each part counts its stride.
struct Layout {
    std::vector<Mode> lane;
    std::vector<Mode> value;

    int at(int lane_index, int value_index) const {
        return offset(lane, lane_index) + offset(value, value_index);
    }

    static int offset(const std::vector<Mode>& modes, int index) {
        int sum = 0;
        for (const Mode& mode : modes) {
            sum += index % mode.shape * mode.stride;
            index /= mode.shape;
        }
        return sum;
    }
};

// Small whole numbers: products and their sums are exact in any order.
inline std::vector<float> random_matrix(size_t elements, unsigned seed) {
    std::minstd_rand random(seed);
    random.discard(100);
    std::vector<float> matrix(elements);
    for (float& element : matrix) {
        element = float(int(random() % 31) - 15);
    }
    return matrix;
}

inline uint16_t bf16_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return uint16_t(bits >> 16);
}
