// Reductions of two buffers. A bf16 result is rounded after each addition, as NCCL's rings do.
#include "reduce.h"

#include <algorithm>
#include <cstring>

namespace emulated {

struct Bfloat16 {
    uint16_t bits;

    Bfloat16() = default;
    explicit Bfloat16(float value) {
        uint32_t wide;
        memcpy(&wide, &value, sizeof wide);
        const bool nan = (wide & 0x7fffffffu) > 0x7f800000u;
        bits = nan ? uint16_t(0x7fff) : uint16_t((wide + 0x7fffu + (wide >> 16 & 1)) >> 16);
    }
    operator float() const {
        const uint32_t wide = uint32_t(bits) << 16;
        float value;
        memcpy(&value, &wide, sizeof value);
        return value;
    }
};

size_t element_bytes(ncclDataType_t type) {
    switch (type) {
        case ncclInt8:
        case ncclUint8: return 1;
        case ncclBfloat16: return 2;
        case ncclInt32:
        case ncclUint32:
        case ncclFloat32: return 4;
        case ncclInt64:
        case ncclUint64:
        case ncclFloat64: return 8;
        default: return 0;
    }
}

// The arithmetic type of an element.
template <class T>
struct Wide {
    typedef T Type;
};
template <>
struct Wide<Bfloat16> {
    typedef float Type;
};

template <class T, class Combine>
static void combine(T* to, const T* from, size_t count, Combine with) {
    typedef typename Wide<T>::Type W;
    for (size_t i = 0; i < count; i++) {
        to[i] = T(with(W(to[i]), W(from[i])));
    }
}

template <class T>
static void accumulate_typed(ncclRedOp_t op, void* to_bytes, const void* from_bytes, size_t count) {
    typedef typename Wide<T>::Type W;
    T* to = static_cast<T*>(to_bytes);
    const T* from = static_cast<const T*>(from_bytes);
    switch (op) {
        case ncclProd: combine(to, from, count, [](W a, W b) { return W(a * b); }); break;
        case ncclMax: combine(to, from, count, [](W a, W b) { return std::max(a, b); }); break;
        case ncclMin: combine(to, from, count, [](W a, W b) { return std::min(a, b); }); break;
        default: combine(to, from, count, [](W a, W b) { return W(a + b); }); break;
    }
}

void accumulate(ncclDataType_t type, ncclRedOp_t op, void* to, const void* from, size_t count) {
    switch (type) {
        case ncclInt8: return accumulate_typed<int8_t>(op, to, from, count);
        case ncclUint8: return accumulate_typed<uint8_t>(op, to, from, count);
        case ncclInt32: return accumulate_typed<int32_t>(op, to, from, count);
        case ncclUint32: return accumulate_typed<uint32_t>(op, to, from, count);
        case ncclInt64: return accumulate_typed<int64_t>(op, to, from, count);
        case ncclUint64: return accumulate_typed<uint64_t>(op, to, from, count);
        case ncclFloat32: return accumulate_typed<float>(op, to, from, count);
        case ncclFloat64: return accumulate_typed<double>(op, to, from, count);
        default: return accumulate_typed<Bfloat16>(op, to, from, count);
    }
}

template <class T>
static void divide(void* bytes, size_t count, int ranks) {
    typedef typename Wide<T>::Type W;
    T* values = static_cast<T*>(bytes);
    for (size_t i = 0; i < count; i++) {
        values[i] = T(W(values[i]) / W(ranks));
    }
}

void finish_average(ncclDataType_t type, void* values, size_t count, int ranks) {
    switch (type) {
        case ncclInt8: return divide<int8_t>(values, count, ranks);
        case ncclUint8: return divide<uint8_t>(values, count, ranks);
        case ncclInt32: return divide<int32_t>(values, count, ranks);
        case ncclUint32: return divide<uint32_t>(values, count, ranks);
        case ncclInt64: return divide<int64_t>(values, count, ranks);
        case ncclUint64: return divide<uint64_t>(values, count, ranks);
        case ncclFloat32: return divide<float>(values, count, ranks);
        case ncclFloat64: return divide<double>(values, count, ranks);
        default: return divide<Bfloat16>(values, count, ranks);
    }
}

}  // namespace emulated
