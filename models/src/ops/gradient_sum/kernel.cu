// The sum of f32 gradients over micro-batches.
#include "common.cuh"

// Adds each element to its sum. Four elements a thread, then the last one to three by a thread
// each; both start at a multiple of 16 bytes.
//
// Grid: any number. Block: any number.
KERNEL void add_gradients(float* __restrict__ sums, const float* __restrict__ x, i64 elements) {
    const i64 whole = elements / 4 * 4;
    for (i64 start = grid_index() * 4; start < whole; start += grid_threads() * 4) {
        Vector<4> sum = load_floats<4>(sums + start);
        const Vector<4> values = load_floats<4>(x + start);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum.at[i] += values.at[i];
        }
        store_floats(sums + start, sum);
    }
    for (i64 i = whole + grid_index(); i < elements; i += grid_threads()) {
        sums[i] += x[i];
    }
}
EXPORT_KERNEL_ELEMENTWISE(add_gradients)
