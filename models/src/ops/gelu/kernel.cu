// GELU in its tanh form: y = x s with s = 1 / (1 + e^(-2u)).
#include "common.cuh"

// 2 sqrt(2 / pi).
constexpr float SLOPE = 1.5957691216057308f;
constexpr float CUBIC = 0.044715f;

// Grid: any number. Block: any number. The number of elements is a multiple of 8.
KERNEL void gelu(Element* __restrict__ y, const Element* __restrict__ x, i64 elements) {
    for (i64 start = grid_index() * PACK; start < elements; start += grid_threads() * PACK) {
        Pack values = load(x + start);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            const float value = values.at[i];
            const float minus_twice_u = value * (value * value * (-SLOPE * CUBIC) - SLOPE);
            values.at[i] = value * (1.0f / (1.0f + expf(minus_twice_u)));
        }
        store(y + start, values);
    }
}
EXPORT_KERNEL_ELEMENTWISE(gelu)
