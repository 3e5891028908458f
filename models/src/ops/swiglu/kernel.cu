// SwiGLU: hidden = gate s up with s = 1 / (1 + e^-gate). Rows hold all of gate, then all of up.
#include "common.cuh"

DEV float sigmoid(float gate) { return 1.0f / (1.0f + expf(-gate)); }

// Where the `index`-th 16 bytes of hidden are, and the gate and up that they come from.
struct Place {
    i64 hidden;
    i64 gate;
    i64 up;
};

// A division of 64 bits would cost as much as the rest: there are fewer than 2^32 packs.
DEV Place place(i64 index, int width) {
    const i64 row = u32(index) / u32(width / PACK);
    const i64 hidden = index * PACK;
    const i64 gate = hidden + row * width;
    return {hidden, gate, gate + width};
}

// Writes y (rows, width) from gate_up (rows, 2 width).
//
// Grid: any number. Block: any number.
KERNEL void swiglu_forward(Element* __restrict__ y, const Element* __restrict__ gate_up, i64 rows,
                           int width) {
    const i64 packs = rows * (width / PACK);
    for (i64 index = grid_index(); index < packs; index += grid_threads()) {
        const Place at = place(index, width);
        Pack gate = load(gate_up + at.gate);
        const Pack up = load(gate_up + at.up);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            gate.at[i] = gate.at[i] * sigmoid(gate.at[i]) * up.at[i];
        }
        store(y + at.hidden, gate);
    }
}
EXPORT_KERNEL_ELEMENTWISE(swiglu_forward)

// Replaces gate_up (rows, 2 width) by its gradient, from dy (rows, width).
//
// Grid: any number. Block: any number.
KERNEL void swiglu_backward(Element* __restrict__ gate_up, const Element* __restrict__ dy,
                            i64 rows, int width) {
    const i64 packs = rows * (width / PACK);
    for (i64 index = grid_index(); index < packs; index += grid_threads()) {
        const Place at = place(index, width);
        Pack gate = load(gate_up + at.gate);
        Pack up = load(gate_up + at.up);
        const Pack gradient = load(dy + at.hidden);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            const float g = gate.at[i];
            const float s = sigmoid(g);
            gate.at[i] = gradient.at[i] * (up.at[i] * (s * (1.0f + g * (1.0f - s))));
            up.at[i] = gradient.at[i] * (g * s);
        }
        store(gate_up + at.gate, gate);
        store(gate_up + at.up, up);
    }
}
EXPORT_KERNEL_ELEMENTWISE(swiglu_backward)
