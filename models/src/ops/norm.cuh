// What LayerNorm and RMSNorm share: y = h w, plus b in LayerNorm, with h = (x - mean) inverse, where
// RMSNorm has no mean. A warp computes a row. Rows are read from memory once, then from the cache.
//
// A `Norm` is a type with
//   HAS_BIAS           whether there is a b
//   Stats              what forward saves of a row: floats
//   Row                what backward needs of a row: its Stats, and means over its columns
//   stats              the Stats of a row, by its warp
//   normalised         h of an x
//   row                the Row of a row, by its warp
//   input_gradient     dx of an element, from its g = dy w and its h
#pragma once

#include "common.cuh"

constexpr int FORWARD_WARPS = 4;
constexpr int FORWARD_THREADS = FORWARD_WARPS * WARP;

// The mean of a function of a row's elements, by a warp.
template <class F>
DEV float row_mean(const Element* x, int width, F function) {
    float sum = 0.0f;
    for (int column = lane_index() * PACK; column < width; column += WARP * PACK) {
        const Pack values = load(x + column);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            sum += function(values.at[i]);
        }
    }
    return warp_sum(sum) / width;
}

// Calls a function with g = dy w and x of this lane's elements of a row.
template <class F>
DEV void for_own_elements(const Element* dy, const Element* x, const Element* weight, int width,
                          F function) {
    for (int column = lane_index() * PACK; column < width; column += WARP * PACK) {
        const Pack gradients = load(dy + column);
        const Pack factors = load(weight + column);
        const Pack values = load(x + column);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            function(gradients.at[i] * factors.at[i], values.at[i]);
        }
    }
}

// Writes a row of y, this lane's packs of it.
template <class Norm>
DEV void normalise(Element* y, const Element* x, const Element* weight, const Element* bias,
                   const typename Norm::Stats& stats, int width) {
    for (int column = lane_index() * PACK; column < width; column += WARP * PACK) {
        Pack values = load(x + column);
        const Pack factors = load(weight + column);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            values.at[i] = Norm::normalised(stats, values.at[i]) * factors.at[i];
        }
        if constexpr (Norm::HAS_BIAS) {
            const Pack addends = load(bias + column);
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                values.at[i] += addends.at[i];
            }
        }
        store(y + column, values);
    }
}

// Writes y (rows, width), and to `stats` the Stats of each row.
//
// Grid: ceil(rows / 4). Block: 128.
template <class Norm>
DEV void norm_forward(Element* y, typename Norm::Stats* stats, const Element* x,
                      const Element* weight, const Element* bias, float epsilon, int rows,
                      int width) {
    const int row = blockIdx.x * FORWARD_WARPS + warp_index();
    if (row >= rows) {
        return;
    }
    const i64 start = i64(row) * width;
    const typename Norm::Stats own = Norm::stats(x + start, epsilon, width);
    if (lane_index() == 0) {
        stats[row] = own;
    }
    normalise<Norm>(y + start, x + start, weight, bias, own, width);
}

// Writes y (rows, width), recomputed from x and the stats of norm_forward.
//
// Grid: ceil(rows / 4). Block: 128.
template <class Norm>
DEV void norm_apply(Element* y, const typename Norm::Stats* stats, const Element* x,
                    const Element* weight, const Element* bias, int rows, int width) {
    const int row = blockIdx.x * FORWARD_WARPS + warp_index();
    if (row >= rows) {
        return;
    }
    const i64 start = i64(row) * width;
    normalise<Norm>(y + start, x + start, weight, bias, stats[row], width);
}

constexpr int BACKWARD_WARPS = 8;
constexpr int BACKWARD_THREADS = BACKWARD_WARPS * WARP;
// Pairs of columns whose sums a thread keeps. Rows of more than 4096 columns take several passes.
constexpr int PAIRS = 8;
constexpr int PASS_COLUMNS = 2 * PAIRS * BACKWARD_THREADS;

// The gradients of a pair of columns of the parameters, summed over rows.
struct Sums {
    Vector<2> weight;
    Vector<2> bias;
};

// One pair of columns of a few rows: writes dx or adds to it, and adds to the columns' sums.
template <class Norm>
DEV void columns_backward(Element* dx, Sums& sums, const Element* dy, const Element* x,
                          const typename Norm::Row* rows, int count, const Vector<2>& weight,
                          int width, bool accumulate) {
#pragma unroll 2
    for (int r = 0; r < count; r++) {
        const i64 start = i64(r) * width;
        const typename Norm::Row row = rows[r];
        const Vector<2> gradients = load_pair(dy + start);
        const Vector<2> values = load_pair(x + start);
        Vector<2> result = accumulate ? load_pair(dx + start) : zeros<2>();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float h = Norm::normalised(row.stats, values.at[i]);
            const float g = gradients.at[i] * weight.at[i];
            result.at[i] += Norm::input_gradient(row, g, h);
            sums.weight.at[i] += gradients.at[i] * h;
            sums.bias.at[i] += gradients.at[i];
        }
        store_pair(dx + start, result);
    }
}

DEV void store_sums(float* to, const Vector<2>& sums) {
    to[0] = sums.at[0];
    to[1] = sums.at[1];
}

// Writes dx (rows, width), or adds to it, and each block's sums over its rows to a row of the
// partials (blocks, width). Eight rows at a time: first a warp computes the means of a row, then a
// thread computes pairs of columns of all eight. dx may not be dy.
//
// Grid: number of partials. Block: 256.
template <class Norm>
DEV void norm_backward(Element* dx, float* weight_partials, float* bias_partials,
                       const Element* dy, const Element* x, const typename Norm::Stats* stats,
                       const Element* weight, int rows, int width, bool accumulate) {
    __shared__ typename Norm::Row means[BACKWARD_WARPS];
    const int first = part_start(rows, blockIdx.x, gridDim.x);
    const int end = part_start(rows, blockIdx.x + 1, gridDim.x);
    for (int pass = 0; pass < width; pass += PASS_COLUMNS) {
        const int own = pass + threadIdx.x * 2;
        Sums sums[PAIRS] = {};
        for (int tile = first; tile < end; tile += BACKWARD_WARPS) {
            const int row = tile + warp_index();
            if (row < end) {
                const i64 start = i64(row) * width;
                means[warp_index()] = Norm::row(stats[row], dy + start, x + start, weight, width);
            }
            __syncthreads();
            const int count = min(BACKWARD_WARPS, end - tile);
#pragma unroll
            for (int pair = 0; pair < PAIRS; pair++) {
                const int column = own + pair * 2 * BACKWARD_THREADS;
                if (column < width) {
                    const i64 start = i64(tile) * width + column;
                    columns_backward<Norm>(dx + start, sums[pair], dy + start, x + start, means,
                                           count, load_pair(weight + column), width, accumulate);
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int pair = 0; pair < PAIRS; pair++) {
            const int column = own + pair * 2 * BACKWARD_THREADS;
            if (column < width) {
                const i64 start = i64(blockIdx.x) * width + column;
                store_sums(weight_partials + start, sums[pair].weight);
                if constexpr (Norm::HAS_BIAS) {
                    store_sums(bias_partials + start, sums[pair].bias);
                }
            }
        }
    }
}
