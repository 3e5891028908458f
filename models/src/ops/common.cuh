// What the kernels share: the element type of the compilation, 16-byte accesses, sums over lanes,
// warps and blocks in a fixed order, and the division of rows into parts.
//
// ELEMENT_F32 or ELEMENT_BF16 says which element a kernel is compiled for; every sum is f32 or f64.
// Nothing here depends on the order in which threads run, so results have the same bits in every
// run.
#pragma once

#include "intrinsics.cuh"

// The mask of a warp operation in which every lane takes part.
constexpr u32 ALL_LANES = 0xffffffffu;
constexpr int WARP = 32;

// Where a running maximum starts. With minus infinity, the difference of two of them would not be a
// number.
constexpr float LOWEST = -3.402823466e38f;

DEV int lane_index() { return threadIdx.x % WARP; }
DEV int warp_index() { return threadIdx.x / WARP; }

// Index of this thread, and number of threads, in a grid of one dimension.
DEV i64 grid_index() { return i64(blockIdx.x) * blockDim.x + threadIdx.x; }
DEV i64 grid_threads() { return i64(gridDim.x) * blockDim.x; }

// N values in registers.
template <int N>
struct Vector {
    float at[N];
};

template <int N>
DEV Vector<N> zeros() {
    Vector<N> zero;
#pragma unroll
    for (int i = 0; i < N; i++) {
        zero.at[i] = 0.0f;
    }
    return zero;
}

// N floats, a multiple of 4, from an address that is a multiple of 16 bytes.
template <int N>
DEV Vector<N> load_floats(const float* from) {
    Vector<N> values;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + i);
        values.at[i] = four.x;
        values.at[i + 1] = four.y;
        values.at[i + 2] = four.z;
        values.at[i + 3] = four.w;
    }
    return values;
}

template <int N>
DEV void store_floats(float* to, const Vector<N>& values) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float* four = values.at + i;
        *reinterpret_cast<float4*>(to + i) = float4{four[0], four[1], four[2], four[3]};
    }
}

constexpr float LOG2_E = 1.4426950408889634f;

// e to the power of x in two instructions. The relative error is below 2^-21 + 2^-24 |x|: most
// where the power itself is small.
DEV float fast_exp(float x) { return fast_exp2(x * LOG2_E); }

// The nearest bf16, ties to even.
DEV u16 to_bf16(float value) { return u16(bf16x2_pack(value, 0.0f)); }

#if defined(ELEMENT_BF16)

typedef u16 Element;

DEV float widen(Element element) { return bf16_lo(element); }
DEV Element narrowed(float value) { return to_bf16(value); }

// Elements in 16 bytes.
constexpr int PACK = 8;
typedef Vector<PACK> Pack;

// A pack as it lies in memory, in half as many registers.
typedef uint4 Packed;

DEV Pack unpacked(const Packed& bits) {
    return {{bf16_lo(bits.x), bf16_hi(bits.x), bf16_lo(bits.y), bf16_hi(bits.y), bf16_lo(bits.z),
             bf16_hi(bits.z), bf16_lo(bits.w), bf16_hi(bits.w)}};
}

DEV Packed packed(const Pack& values) {
    const float* v = values.at;
    return {bf16x2_pack(v[0], v[1]), bf16x2_pack(v[2], v[3]), bf16x2_pack(v[4], v[5]),
            bf16x2_pack(v[6], v[7])};
}

// Two neighbours, at an even index.
DEV Vector<2> load_pair(const Element* from) {
    const u32 bits = *reinterpret_cast<const u32*>(from);
    return {{bf16_lo(bits), bf16_hi(bits)}};
}

#elif defined(ELEMENT_F32)

typedef float Element;

DEV float widen(Element element) { return element; }
DEV Element narrowed(float value) { return value; }

constexpr int PACK = 4;
typedef Vector<PACK> Pack;

typedef float4 Packed;

DEV Pack unpacked(const Packed& four) { return {{four.x, four.y, four.z, four.w}}; }

DEV Packed packed(const Pack& values) {
    const float* v = values.at;
    return {v[0], v[1], v[2], v[3]};
}

DEV Vector<2> load_pair(const Element* from) {
    const float2 pair = *reinterpret_cast<const float2*>(from);
    return {{pair.x, pair.y}};
}

#endif

#if defined(ELEMENT_BF16) || defined(ELEMENT_F32)

// From and to addresses that are multiples of 16 bytes.
DEV Packed load_packed(const Element* from) { return *reinterpret_cast<const Packed*>(from); }
DEV Pack load(const Element* from) { return unpacked(load_packed(from)); }
DEV void store_packed(Element* to, const Packed& bits) { *reinterpret_cast<Packed*>(to) = bits; }
DEV void store(Element* to, const Pack& values) { store_packed(to, packed(values)); }

#endif

// The sum over a warp, in every lane: a butterfly, whose lanes all add the same numbers pairwise.
template <class T>
DEV T warp_sum(T value) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    }
    return value;
}

DEV float warp_max(float value) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, distance));
    }
    return value;
}

// The sum over a block of THREADS threads, in every thread: warps, then their sums in order.
template <int THREADS, class T>
DEV T block_sum(T value) {
    __shared__ T sums[THREADS / WARP];
    value = warp_sum(value);
    __syncthreads();  // An earlier use of `sums` has been read.
    if (lane_index() == 0) {
        sums[warp_index()] = value;
    }
    __syncthreads();
    T sum = sums[0];
#pragma unroll
    for (int warp = 1; warp < THREADS / WARP; warp++) {
        sum += sums[warp];
    }
    return sum;
}

// The first row of a part, where `rows` rows are divided evenly among `parts`. The part's end is
// the first row of the next.
DEV int part_start(int rows, int part, int parts) { return int(i64(rows) * part / parts); }
