// The sum of squares of f32 gradients, in two steps, and the place of what is not finite.
//
// Squares and sums are f64: the relative error is below 2^-53 times the elements of one thread plus
// 300, and an f32 squared cannot overflow. The sum is finite exactly when every element is.
#include "common.cuh"

constexpr int THREADS = 256;

DEV double square(float value) { return double(value) * double(value); }

// Writes each block's sum of squares to partials (blocks). Four elements a thread, then the last
// one to three by a thread each; x starts at a multiple of 16 bytes.
//
// Grid: number of partials. Block: 256.
KERNEL void __launch_bounds__(THREADS)
squares_partials(double* __restrict__ partials, const float* __restrict__ x, i64 elements) {
    // One sum for each element of a pack: four chains of additions are in flight.
    double sums[4] = {};
    const i64 whole = elements / 4 * 4;
    for (i64 start = grid_index() * 4; start < whole; start += grid_threads() * 4) {
        const Vector<4> values = load_floats<4>(x + start);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums[i] += square(values.at[i]);
        }
    }
    for (i64 i = whole + grid_index(); i < elements; i += grid_threads()) {
        sums[0] += square(x[i]);
    }
    const double total = block_sum<THREADS>((sums[0] + sums[1]) + (sums[2] + sums[3]));
    if (threadIdx.x == 0) {
        partials[blockIdx.x] = total;
    }
}
EXPORT_KERNEL(squares_partials)

// Writes the sum of the partials, or adds it.
//
// Grid: 1. Block: 256.
KERNEL void __launch_bounds__(THREADS)
squares_sum(double* __restrict__ sum, const double* __restrict__ partials, int parts,
            int accumulate) {
    double own = 0.0;
    for (int part = threadIdx.x; part < parts; part += THREADS) {
        own += partials[part];
    }
    const double total = block_sum<THREADS>(own);
    if (threadIdx.x == 0) {
        *sum = accumulate ? *sum + total : total;
    }
}
EXPORT_KERNEL(squares_sum)

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
