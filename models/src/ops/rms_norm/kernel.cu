// RMSNorm: a warp computes a row. Rows are read from memory once, then from the cache.
#include "common.cuh"

constexpr int FORWARD_WARPS = 4;

// The row of this warp, where every warp of the grid has one.
DEV int warp_row() { return blockIdx.x * FORWARD_WARPS + warp_index(); }

// Writes a row of y, this lane's packs of it.
DEV void normalise(Element* y, const Element* x, const Element* weight, float inverse, int width) {
    for (int column = lane_index() * PACK; column < width; column += WARP * PACK) {
        Pack values = load(x + column);
        const Pack factors = load(weight + column);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            values.at[i] = values.at[i] * inverse * factors.at[i];
        }
        store(y + column, values);
    }
}

DEV float mean_square(const Element* x, int width) {
    float sum = 0.0f;
    for (int column = lane_index() * PACK; column < width; column += WARP * PACK) {
        const Pack values = load(x + column);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            sum += values.at[i] * values.at[i];
        }
    }
    return warp_sum(sum) / width;
}

// Writes y (rows, width) and, per row, 1 / root mean square to stats (rows).
//
// Grid: ceil(rows / 4). Block: 128.
KERNEL void __launch_bounds__(FORWARD_WARPS* WARP)
rms_norm_forward(Element* __restrict__ y, float* __restrict__ stats,
                 const Element* __restrict__ x, const Element* __restrict__ weight, float epsilon,
                 int rows, int width) {
    const int row = warp_row();
    if (row >= rows) {
        return;
    }
    const i64 start = i64(row) * width;
    const float inverse = 1.0f / sqrtf(mean_square(x + start, width) + epsilon);
    if (lane_index() == 0) {
        stats[row] = inverse;
    }
    normalise(y + start, x + start, weight, inverse, width);
}
EXPORT_KERNEL(rms_norm_forward)

// Writes y (rows, width), recomputed from x and the stats of rms_norm_forward.
//
// Grid: ceil(rows / 4). Block: 128.
KERNEL void __launch_bounds__(FORWARD_WARPS* WARP)
rms_norm_apply(Element* __restrict__ y, const float* __restrict__ stats,
               const Element* __restrict__ x, const Element* __restrict__ weight, int rows,
               int width) {
    const int row = warp_row();
    if (row >= rows) {
        return;
    }
    const i64 start = i64(row) * width;
    normalise(y + start, x + start, weight, stats[row], width);
}
EXPORT_KERNEL_ELEMENTWISE(rms_norm_apply)

constexpr int BACKWARD_WARPS = 8;
constexpr int BACKWARD_THREADS = BACKWARD_WARPS * WARP;
// Pairs of columns whose sums a thread keeps. Rows of more than 4096 columns take several passes.
constexpr int PAIRS = 8;
constexpr int PASS_COLUMNS = 2 * PAIRS * BACKWARD_THREADS;

// What the second half of backward needs of a row: with g = dy w and h = x inverse.
struct Row {
    float inverse;
    float mean_gh;
};

// By a warp.
DEV Row row_means(const Element* dy, const Element* x, float inverse, const Element* weight,
                  int width) {
    float sum_gx = 0.0f;
    for (int column = lane_index() * PACK; column < width; column += WARP * PACK) {
        const Pack gradients = load(dy + column);
        const Pack factors = load(weight + column);
        const Pack values = load(x + column);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            sum_gx += gradients.at[i] * factors.at[i] * values.at[i];
        }
    }
    return {inverse, warp_sum(sum_gx) * inverse / width};
}

// One pair of columns of a few rows: writes dx or adds to it, and adds to the columns' sums.
DEV void columns_backward(Element* dx, Vector<2>& sums, const Element* dy, const Element* x,
                          const Row* rows, int count, const Vector<2>& weight, int width,
                          bool accumulate) {
#pragma unroll 2
    for (int r = 0; r < count; r++) {
        const i64 start = i64(r) * width;
        const Row row = rows[r];
        const Vector<2> gradients = load_pair(dy + start);
        const Vector<2> values = load_pair(x + start);
        Vector<2> result = accumulate ? load_pair(dx + start) : zeros<2>();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float h = values.at[i] * row.inverse;
            const float g = gradients.at[i] * weight.at[i];
            result.at[i] += row.inverse * (g - h * row.mean_gh);
            sums.at[i] += gradients.at[i] * h;
        }
        store_pair(dx + start, result);
    }
}

// Writes dx (rows, width), or adds to it, and each block's sums over its rows to a row of the
// partials (blocks, width). Eight rows at a time: first a warp computes the mean of a row, then a
// thread computes pairs of columns of all eight. dx may not be dy.
//
// Grid: number of partials. Block: 256.
KERNEL void __launch_bounds__(BACKWARD_THREADS, 2)
rms_norm_backward(Element* __restrict__ dx, float* __restrict__ weight_partials,
                  const Element* __restrict__ dy, const Element* __restrict__ x,
                  const float* __restrict__ stats, const Element* __restrict__ weight, int rows,
                  int width, int accumulate) {
    __shared__ Row means[BACKWARD_WARPS];
    const int first = part_start(rows, blockIdx.x, gridDim.x);
    const int end = part_start(rows, blockIdx.x + 1, gridDim.x);
    for (int pass = 0; pass < width; pass += PASS_COLUMNS) {
        const int own = pass + threadIdx.x * 2;
        Vector<2> sums[PAIRS] = {};
        for (int tile = first; tile < end; tile += BACKWARD_WARPS) {
            const int row = tile + warp_index();
            if (row < end) {
                const i64 start = i64(row) * width;
                means[warp_index()] = row_means(dy + start, x + start, stats[row], weight, width);
            }
            __syncthreads();
            const int count = min(BACKWARD_WARPS, end - tile);
#pragma unroll
            for (int pair = 0; pair < PAIRS; pair++) {
                const int column = own + pair * 2 * BACKWARD_THREADS;
                if (column < width) {
                    const i64 start = i64(tile) * width + column;
                    columns_backward(dx + start, sums[pair], dy + start, x + start, means,
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
                weight_partials[start] = sums[pair].at[0];
                weight_partials[start + 1] = sums[pair].at[1];
            }
        }
    }
}
EXPORT_KERNEL(rms_norm_backward)
