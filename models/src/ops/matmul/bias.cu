// The bias of a product whose library has no epilogue for it.
#include "common.cuh"

// Adds bias (width) to each row of y (elements / width, width).
//
// Grid: any number. Block: any number. The width is a multiple of 8.
KERNEL void add_bias(Element* __restrict__ y, const Element* __restrict__ bias, i64 elements,
                     int width) {
    for (i64 start = grid_index() * PACK; start < elements; start += grid_threads() * PACK) {
        Pack values = load(y + start);
        const Pack addends = load(bias + start % width);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            values.at[i] += addends.at[i];
        }
        store(y + start, values);
    }
}
EXPORT_KERNEL_ELEMENTWISE(add_bias)
