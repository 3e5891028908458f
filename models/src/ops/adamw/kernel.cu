// AdamW: one pass over weights, gradients and both moments.
#include "common.cuh"

// Elements of a block, all or none of which decay: models::layout::ALIGN.
constexpr i64 BLOCK = 128;

// The factors of every element's update; `rate` is the learning rate by the first correction,
// `keep` what is left of a weight that decays.
struct Factors {
    float scale;
    float beta1;
    float beta2;
    float rest1;
    float rest2;
    float epsilon;
    float rate;
    float root_correction;
    float keep;
};

DEV void update(float& weight, float gradient, float& first, float& second,
                const Factors& factors, bool decays) {
    const float scaled = gradient * factors.scale;
    first = factors.beta1 * first + factors.rest1 * scaled;
    second = factors.beta2 * second + factors.rest2 * scaled * scaled;
    const float root = sqrtf(second) * factors.root_correction + factors.epsilon;
    const float kept = decays ? factors.keep * weight : weight;
    weight = kept - factors.rate * first / root;
}

// Four weights rounded, to an address that is a multiple of 8 bytes.
DEV void store_working(u16* to, const Vector<4>& weights) {
    const float* w = weights.at;
    *reinterpret_cast<uint2*>(to) = uint2{bf16x2_pack(w[0], w[1]), bf16x2_pack(w[2], w[3])};
}

// Four elements a thread, then the last one to three by a thread each. Element i is element
// `offset` + i of the flat buffers, which has its byte of `decay_blocks`; `offset` is a multiple of
// four.
//
// Grid: any number. Block: any number. The slices start at multiples of 16 bytes, `working` of 8.
KERNEL void adamw(float* __restrict__ weights, u16* __restrict__ working,
                  const float* __restrict__ gradients, float* __restrict__ first_moments,
                  float* __restrict__ second_moments,
                  const unsigned char* __restrict__ decay_blocks, i64 offset, i64 elements,
                  float scale, float beta1, float beta2, float rest1, float rest2, float epsilon,
                  float rate, float root_correction, float keep) {
    const Factors factors = {scale,   beta1, beta2,           rest1, rest2,
                             epsilon, rate,  root_correction, keep};
    const i64 whole = elements / 4 * 4;
    for (i64 start = grid_index() * 4; start < whole; start += grid_threads() * 4) {
        Vector<4> weight = load_floats<4>(weights + start);
        Vector<4> first = load_floats<4>(first_moments + start);
        Vector<4> second = load_floats<4>(second_moments + start);
        const Vector<4> gradient = load_floats<4>(gradients + start);
        const bool decays = decay_blocks[(offset + start) / BLOCK] != 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            update(weight.at[i], gradient.at[i], first.at[i], second.at[i], factors, decays);
        }
        store_floats(weights + start, weight);
        store_floats(first_moments + start, first);
        store_floats(second_moments + start, second);
        if (working != nullptr) {
            store_working(working + start, weight);
        }
    }
    for (i64 i = whole + grid_index(); i < elements; i += grid_threads()) {
        const bool decays = decay_blocks[(offset + i) / BLOCK] != 0;
        update(weights[i], gradients[i], first_moments[i], second_moments[i], factors, decays);
        if (working != nullptr) {
            working[i] = to_bf16(weights[i]);
        }
    }
}
EXPORT_KERNEL_ELEMENTWISE(adamw)

// Writes the weights rounded.
//
// Grid: any number. Block: any number. The slices start as those of adamw.
KERNEL void narrow(u16* __restrict__ working, const float* __restrict__ weights, i64 elements) {
    const i64 whole = elements / 4 * 4;
    for (i64 start = grid_index() * 4; start < whole; start += grid_threads() * 4) {
        store_working(working + start, load_floats<4>(weights + start));
    }
    for (i64 i = whole + grid_index(); i < elements; i += grid_threads()) {
        working[i] = to_bf16(weights[i]);
    }
}
EXPORT_KERNEL_ELEMENTWISE(narrow)
