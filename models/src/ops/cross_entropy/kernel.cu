// The loss of rows of logits, whose gradient overwrites them.
//
// Exponentials are fast ones, because there are two for every logit that is read and replaced.
#include "common.cuh"

// The maximum of some logits, and the sum of exponentials relative to it; {LOWEST, 0} of none.
struct Softmax {
    float maximum;
    float sum;
};

// Both as one.
DEV Softmax join(Softmax a, Softmax b) {
    const float maximum = fmaxf(a.maximum, b.maximum);
    return {maximum, a.sum * fast_exp(a.maximum - maximum) + b.sum * fast_exp(b.maximum - maximum)};
}

DEV Softmax warp_join(Softmax own) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        Softmax other;
        other.maximum = __shfl_xor_sync(ALL_LANES, own.maximum, distance);
        other.sum = __shfl_xor_sync(ALL_LANES, own.sum, distance);
        // In lanes of both halves in the same order, so that all have the same bits.
        const bool upper = lane_index() & distance;
        own = upper ? join(other, own) : join(own, other);
    }
    return own;
}

constexpr int MOST_WARPS = 32;

// Over the block, in every thread.
DEV Softmax block_join(Softmax own) {
    __shared__ Softmax parts[MOST_WARPS];
    own = warp_join(own);
    if (lane_index() == 0) {
        parts[warp_index()] = own;
    }
    __syncthreads();
    const int warps = blockDim.x / WARP;
    return warp_join(lane_index() < warps ? parts[lane_index()] : Softmax{LOWEST, 0.0f});
}

// The logits of one pack; those that are beyond the vocabulary count as LOWEST.
DEV Pack load_logits(const Element* row, int start, int vocabulary) {
    Pack logits = load(row + start);
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        if (start + i >= vocabulary) {
            logits.at[i] = LOWEST;
        }
    }
    return logits;
}

// Over this thread's packs of a row, each read once: earlier sums are scaled where a pack raises
// the maximum.
DEV Softmax thread_softmax(const Element* row, int vocabulary) {
    Softmax softmax = {LOWEST, 0.0f};
    for (int start = threadIdx.x * PACK; start < vocabulary; start += blockDim.x * PACK) {
        const Pack logits = load_logits(row, start, vocabulary);
        float maximum = softmax.maximum;
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            maximum = fmaxf(maximum, logits.at[i]);
        }
        if (maximum > softmax.maximum) {
            softmax.sum *= fast_exp(softmax.maximum - maximum);
            softmax.maximum = maximum;
        }
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            softmax.sum += fast_exp(logits.at[i] - maximum);
        }
    }
    return softmax;
}

// Replaces this thread's packs of a row by scale (softmax - onehot), and by 0 beyond the
// vocabulary.
DEV void write_gradients(Element* row, float log_sum, int target, int vocabulary, int stride,
                         float scale) {
    for (int start = threadIdx.x * PACK; start < stride; start += blockDim.x * PACK) {
        Pack values = load_logits(row, start, vocabulary);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            const float gradient = fast_exp(values.at[i] - log_sum) * scale;
            values.at[i] = start + i == target ? gradient - scale : gradient;
        }
        store(row + start, values);
    }
}

// Writes losses[r] = -ln softmax(logits)[targets[r]] for row r, the index of the block, of logits
// (rows, stride), of which the first `vocabulary` columns count; stride is a multiple of 8. The sum
// is relative to the row's maximum. Where asked for, the row becomes its gradient.
//
// Grid: rows. Block: a multiple of 32, 1024 at most.
KERNEL void __launch_bounds__(MOST_WARPS* WARP)
cross_entropy(float* __restrict__ losses, Element* __restrict__ logits,
              const u32* __restrict__ targets, int vocabulary, int stride, float scale,
              int write_gradient) {
    Element* row = logits + i64(blockIdx.x) * stride;
    const int target = int(targets[blockIdx.x]);
    // Before the barrier in `block_join`: behind it the row is overwritten.
    const float target_logit = threadIdx.x == 0 ? widen(row[target]) : 0.0f;
    const Softmax softmax = block_join(thread_softmax(row, vocabulary));
    const float log_of_sum = logf(softmax.sum);
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = softmax.maximum - target_logit + log_of_sum;
    }
    if (write_gradient) {
        const float log_sum = softmax.maximum + log_of_sum;
        write_gradients(row, log_sum, target, vocabulary, stride, scale);
    }
}
EXPORT_KERNEL(cross_entropy)

constexpr int SUM_THREADS = 256;

// Adds the sum of the losses, in f64.
//
// Grid: 1. Block: 256.
KERNEL void __launch_bounds__(SUM_THREADS)
loss_sum(double* __restrict__ sum, const float* __restrict__ losses, int count) {
    double own = 0.0;
    for (int i = threadIdx.x; i < count; i += SUM_THREADS) {
        own += losses[i];
    }
    const double total = block_sum<SUM_THREADS>(own);
    if (threadIdx.x == 0) {
        *sum += total;
    }
}
EXPORT_KERNEL(loss_sum)
