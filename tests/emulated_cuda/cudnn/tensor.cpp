// Elements of tensors, by their strides.
#include "tensor.h"

#include <algorithm>

namespace emulated {

static std::array<int64_t, 4> four(const std::vector<int64_t>& values) {
    std::array<int64_t, 4> array;
    std::copy_n(values.begin(), 4, array.begin());
    return array;
}

static bool flag(const Descriptor& descriptor, int attribute) {
    return descriptor.has(attribute) && descriptor.number(attribute) != 0;
}

Tensor Tensor::of(const Descriptor& descriptor) {
    Tensor tensor;
    tensor.unique_id = descriptor.number(TENSOR_UNIQUE_ID);
    tensor.data_type = int(descriptor.number(TENSOR_DATA_TYPE));
    tensor.dimensions = four(descriptor.numbers(TENSOR_DIMENSIONS));
    tensor.strides = four(descriptor.numbers(TENSOR_STRIDES));
    tensor.alignment = descriptor.number(TENSOR_BYTE_ALIGNMENT);
    tensor.is_virtual = flag(descriptor, TENSOR_IS_VIRTUAL);
    tensor.by_value = flag(descriptor, TENSOR_IS_BY_VALUE);
    return tensor;
}

size_t Tensor::bytes() const {
    const size_t last = offset(dimensions[0] - 1, dimensions[1] - 1, dimensions[2] - 1,
                               dimensions[3] - 1);
    return (last + 1) * element_bytes();
}

float Tensor::load(int64_t sequence, int64_t head, int64_t token, int64_t column) const {
    const size_t index = offset(sequence, head, token, column);
    if (data_type == DATA_BFLOAT16) {
        return widened(reinterpret_cast<const uint16_t*>(data)[index]);
    }
    return reinterpret_cast<const float*>(data)[index];
}

void Tensor::store(int64_t sequence, int64_t head, int64_t token, int64_t column,
                   float value) const {
    const size_t index = offset(sequence, head, token, column);
    if (data_type == DATA_BFLOAT16) {
        reinterpret_cast<uint16_t*>(data)[index] = narrowed(value);
    } else {
        reinterpret_cast<float*>(data)[index] = value;
    }
}

uint16_t narrowed(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return nan ? uint16_t(0x7fff) : uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

float widened(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

}  // namespace emulated
