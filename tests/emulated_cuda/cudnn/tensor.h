// Tensors of four dimensions: sequences, heads, tokens and columns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "descriptor.h"

namespace emulated {

struct Tensor {
    int64_t unique_id = 0;
    int data_type = DATA_FLOAT;
    std::array<int64_t, 4> dimensions = {};
    std::array<int64_t, 4> strides = {};
    int64_t alignment = 1;
    bool is_virtual = false;
    bool by_value = false;
    // Where it is, once a plan is executed.
    char* data = nullptr;

    static Tensor of(const Descriptor& descriptor);

    bool in_memory() const { return !is_virtual && !by_value; }
    size_t element_bytes() const { return data_type == DATA_BFLOAT16 ? 2 : 4; }
    // From the first to the last element.
    size_t bytes() const;
    size_t offset(int64_t sequence, int64_t head, int64_t token, int64_t column) const {
        return size_t(sequence * strides[0] + head * strides[1] + token * strides[2] +
                      column * strides[3]);
    }
    float load(int64_t sequence, int64_t head, int64_t token, int64_t column) const;
    void store(int64_t sequence, int64_t head, int64_t token, int64_t column, float value) const;
};

// To the nearest bf16, ties to even.
uint16_t narrowed(float value);
float widened(uint16_t bits);
inline float rounded(float value) { return widened(narrowed(value)); }

}  // namespace emulated
