// Sums over elements, in two steps, and the place of what is not finite.
//
// Squares and sums are f64: the relative error is below 2^-53 times the elements of one thread plus
// 300, and an f32 squared cannot overflow. The sum of squares is finite exactly when every element
// is.
#include "common.cuh"

constexpr int THREADS = 256;

// Sums of a pack are spread over so many chains of additions, all in flight.
constexpr int CHAINS = 4;

struct ElementSums {
    double weighted;
    double squares;
};

// Adds an element at a position, with 1024 times its weight: an integer from 1024 to 2047.
DEV void add(ElementSums& sums, float element, i64 position) {
    const u32 weight = 1024u + (u32(position) * 0x9e3779b1u >> 22);
    const double value = double(element);
    sums.weighted += double(weight) * value;
    sums.squares += value * value;
}

// Writes each block's sums to partials (2, blocks): first the weighted sum, then the squares. A
// pack a thread, then the last elements by a thread each; x starts at a multiple of 16 bytes.
//
// Grid: number of partials. Block: 256.
KERNEL void __launch_bounds__(THREADS)
sums_partials(double* __restrict__ partials, const Element* __restrict__ x, i64 first,
              i64 elements) {
    ElementSums sums[CHAINS] = {};
    const i64 whole = elements / PACK * PACK;
    for (i64 start = grid_index() * PACK; start < whole; start += grid_threads() * PACK) {
        const Pack values = load(x + start);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            add(sums[i % CHAINS], values.at[i], first + start + i);
        }
    }
    for (i64 i = whole + grid_index(); i < elements; i += grid_threads()) {
        add(sums[0], widen(x[i]), first + i);
    }
    const double weighted = block_sum<THREADS>((sums[0].weighted + sums[1].weighted) +
                                               (sums[2].weighted + sums[3].weighted));
    const double squares = block_sum<THREADS>((sums[0].squares + sums[1].squares) +
                                              (sums[2].squares + sums[3].squares));
    if (threadIdx.x == 0) {
        partials[blockIdx.x] = weighted * (1.0 / 1024.0);
        partials[gridDim.x + blockIdx.x] = squares;
    }
}
EXPORT_KERNEL(sums_partials)

#if defined(ELEMENT_F32)

// Adds to each sum its partials, of partials (sums, parts).
//
// Grid: number of sums. Block: 256.
KERNEL void __launch_bounds__(THREADS)
add_partials(double* __restrict__ sums, const double* __restrict__ partials, int parts) {
    double own = 0.0;
    for (int part = threadIdx.x; part < parts; part += THREADS) {
        own += partials[i64(blockIdx.x) * parts + part];
    }
    const double total = block_sum<THREADS>(own);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] += total;
    }
}
EXPORT_KERNEL(add_partials)

// Lowers *first, which the caller set to all ones, to the index of the first element that is
// infinite or not a number. A minimum of integers does not depend on the order of the threads.
//
// Grid: any number. Block: any number.
KERNEL void first_non_finite(u64* __restrict__ first, const float* __restrict__ x, i64 elements) {
    for (i64 index = grid_index(); index < elements; index += grid_threads()) {
        if (!isfinite(x[index])) {
            atomicMin(first, u64(index));
            return;
        }
    }
}
EXPORT_KERNEL_ELEMENTWISE(first_non_finite)

#endif
