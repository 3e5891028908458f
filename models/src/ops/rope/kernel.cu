// RoPE: element i of a head and element i + pairs turn by the angle of pair i.
#include "common.cuh"

// 16 bytes of pairs of one head, from the pair at `first` and `second` on.
DEV void rotate_pack(Element* first, Element* second, const float* cosine, const float* sine,
                     float direction) {
    Pack x = load(first);
    Pack y = load(second);
    const Pack c = load_floats<PACK>(cosine);
    const Pack s = load_floats<PACK>(sine);
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        const float before = x.at[i];
        const float signed_sine = direction * s.at[i];
        x.at[i] = before * c.at[i] - y.at[i] * signed_sine;
        y.at[i] = y.at[i] * c.at[i] + before * signed_sine;
    }
    store(first, x);
    store(second, y);
}

DEV void rotate_pair(Element* first, Element* second, float cosine, float sine) {
    const float x = widen(*first);
    const float y = widen(*second);
    *first = narrowed(x * cosine - y * sine);
    *second = narrowed(y * cosine + x * sine);
}

// Rotates the first `heads` heads of 2 `pairs` elements of every row of x (rows, columns) in place.
// The tables are (sequence_tokens, pairs); direction is 1 forward and -1 backward.
//
// Grid: rows. Block: 128.
KERNEL void __launch_bounds__(128)
rotate(Element* __restrict__ x, const float* __restrict__ cosine, const float* __restrict__ sine,
       int rows, int sequence_tokens, int columns, int heads, int pairs, float direction) {
    const int row = blockIdx.x;
    if (row >= rows) {
        return;
    }
    Element* heads_start = x + i64(row) * columns;
    const i64 angles = i64(row % sequence_tokens) * pairs;
    // Otherwise heads do not start at multiples of 16 bytes.
    if (pairs % PACK == 0) {
        const int packs = pairs / PACK;
        for (int index = threadIdx.x; index < heads * packs; index += blockDim.x) {
            const int pair = index % packs * PACK;
            Element* first = heads_start + index / packs * 2 * pairs + pair;
            const i64 angle = angles + pair;
            rotate_pack(first, first + pairs, cosine + angle, sine + angle, direction);
        }
        return;
    }
    for (int index = threadIdx.x; index < heads * pairs; index += blockDim.x) {
        const int pair = index % pairs;
        Element* first = heads_start + index / pairs * 2 * pairs + pair;
        const i64 angle = angles + pair;
        rotate_pair(first, first + pairs, cosine[angle], direction * sine[angle]);
    }
}
EXPORT_KERNEL_ELEMENTWISE(rotate)
