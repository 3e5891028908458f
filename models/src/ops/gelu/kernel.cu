// GELU in its tanh form: y = x s with s = 1 / (1 + e^(-2u)).
#include "common.cuh"

// 2 sqrt(2 / pi).
constexpr float SLOPE = 1.5957691216057308f;
constexpr float CUBIC = 0.044715f;

// s at x.
DEV float gate(float x) {
    const float minus_twice_u = x * (x * x * (-SLOPE * CUBIC) - SLOPE);
    return 1.0f / (1.0f + expf(minus_twice_u));
}

// Grid: any number. Block: any number. The number of elements is a multiple of 8. y may be x.
KERNEL void gelu(Element* y, const Element* x, i64 elements) {
    for (i64 start = grid_index() * PACK; start < elements; start += grid_threads() * PACK) {
        Pack values = load(x + start);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            values.at[i] *= gate(values.at[i]);
        }
        store(y + start, values);
    }
}
EXPORT_KERNEL_ELEMENTWISE(gelu)

// Multiplies dy by the slope of GELU at x. Grid, block and number of elements as above.
KERNEL void gelu_backward(Element* __restrict__ dy, const Element* __restrict__ x, i64 elements) {
    for (i64 start = grid_index() * PACK; start < elements; start += grid_threads() * PACK) {
        Pack gradients = load(dy + start);
        const Pack values = load(x + start);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            const float value = values.at[i];
            const float s = gate(value);
            const float slope_of_twice_u = value * value * (3.0f * SLOPE * CUBIC) + SLOPE;
            gradients.at[i] *= s + value * s * (1.0f - s) * slope_of_twice_u;
        }
        store(dy + start, gradients);
    }
}
EXPORT_KERNEL_ELEMENTWISE(gelu_backward)
