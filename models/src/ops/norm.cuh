// What LayerNorm and RMSNorm share: y = h w, plus b in LayerNorm, with h = (x - mean) inverse,
// where RMSNorm has no mean. Forward computes a row by a warp, and reads it from memory once, then
// from the cache; backward computes some rows by a block, and keeps them in registers.
//
// A `Norm` is a type with
//   HAS_BIAS           whether there is a b
//   Stats              what forward saves of a row: floats
//   SUMS               sums over a row that backward needs
//   Row                what backward needs of a row: its Stats, and means over its columns
//   stats              the Stats of a row, by its warp
//   normalised         h of an x
//   add                adds an element to the SUMS of its row, from its g = dy w and its x
//   row                the Row of a row, from its SUMS
//   input_gradient     dx of an element, from its g and its h
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

// Rows that a block of backward computes at a time, whose loads are in flight together.
constexpr int TILE_ROWS = 2;
constexpr int BACKWARD_WARPS_MAX = 16;
constexpr int BACKWARD_THREADS_MAX = BACKWARD_WARPS_MAX * WARP;

// The SUMS of each row of a tile.
template <class Norm>
struct TileSums {
    float of_row[TILE_ROWS][Norm::SUMS];
};

// Adds eight or four neighbours of a row to its SUMS.
template <class Norm>
DEV void add_pack(float (&sums)[Norm::SUMS], const typename Norm::Stats& stats,
                  const Pack& gradients, const Pack& values, const Pack& weight) {
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        Norm::add(sums, stats, gradients.at[i] * weight.at[i], values.at[i]);
    }
}

// The sums over the block, in every thread. `warps` is not written again before the next barrier.
template <class Norm>
DEV TileSums<Norm> block_sums(TileSums<Norm> own, TileSums<Norm>* warps) {
#pragma unroll
    for (int r = 0; r < TILE_ROWS; r++) {
#pragma unroll
        for (int i = 0; i < Norm::SUMS; i++) {
            own.of_row[r][i] = warp_sum(own.of_row[r][i]);
        }
    }
    if (lane_index() == 0) {
        warps[warp_index()] = own;
    }
    __syncthreads();
    TileSums<Norm> total = warps[0];
    for (int warp = 1; warp < blockDim.x / WARP; warp++) {
#pragma unroll
        for (int r = 0; r < TILE_ROWS; r++) {
#pragma unroll
            for (int i = 0; i < Norm::SUMS; i++) {
                total.of_row[r][i] += warps[warp].of_row[r][i];
            }
        }
    }
    return total;
}

// The columns' sums over rows, of the gradients of the parameters and of dx: eight or four
// neighbours.
struct ColumnSums {
    Pack weight;
    Pack bias;
    Pack dx;
};

// One pack of a row: adds dx to `result`, and to the columns' sums.
template <class Norm>
DEV void pack_backward(Pack& result, ColumnSums& sums, const typename Norm::Row& row,
                       const Pack& gradients, const Pack& values, const Pack& weight) {
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        const float h = Norm::normalised(row.stats, values.at[i]);
        result.at[i] += Norm::input_gradient(row, gradients.at[i] * weight.at[i], h);
        sums.weight.at[i] += gradients.at[i] * h;
        sums.bias.at[i] += gradients.at[i];
    }
}

// Writes dx (rows, width), or adds to it, and each block's sums over its rows to a row of the
// partials (blocks, width); where there is a bias, also those of what dx is then, which is the
// gradient of another layer's bias. A thread has the same pack of columns in every row, and keeps
// it in registers between the sums over the row and dx. Rows with more packs than the block has
// threads take several passes, each of which reads the whole row. dx may not be dy.
//
// Grid: number of partials. Block: a multiple of 32, 512 at most.
template <class Norm>
DEV void norm_backward(Element* dx, float* weight_partials, float* bias_partials,
                       float* dx_partials, const Element* dy, const Element* x,
                       const typename Norm::Stats* stats, const Element* weight, int rows,
                       int width, bool accumulate) {
    // Two, so that one barrier for each tile is enough.
    __shared__ TileSums<Norm> warps[2][BACKWARD_WARPS_MAX];
    int buffer = 0;
    const int first = part_start(rows, blockIdx.x, gridDim.x);
    const int end = part_start(rows, blockIdx.x + 1, gridDim.x);
    const int pass_columns = blockDim.x * PACK;
    for (int pass = 0; pass < width; pass += pass_columns) {
        const int own = pass + threadIdx.x * PACK;
        const bool has_columns = own < width;
        const Packed factors = has_columns ? load_packed(weight + own) : Packed{};
        ColumnSums sums = {};
        for (int tile = first; tile < end; tile += TILE_ROWS) {
            Packed gradients[TILE_ROWS] = {};
            Packed values[TILE_ROWS] = {};
            Packed results[TILE_ROWS] = {};
            typename Norm::Stats row_stats[TILE_ROWS] = {};
#pragma unroll
            for (int r = 0; r < TILE_ROWS; r++) {
                const i64 start = i64(tile + r) * width;
                if (tile + r < end) {
                    row_stats[r] = stats[tile + r];
                }
                if (tile + r < end && has_columns) {
                    gradients[r] = load_packed(dy + start + own);
                    values[r] = load_packed(x + start + own);
                    results[r] = accumulate ? load_packed(dx + start + own) : Packed{};
                }
            }
            TileSums<Norm> own_sums = {};
#pragma unroll
            for (int r = 0; r < TILE_ROWS; r++) {
                add_pack<Norm>(own_sums.of_row[r], row_stats[r], unpacked(gradients[r]),
                               unpacked(values[r]), unpacked(factors));
                const i64 start = i64(tile + r) * width;
                const int other_columns = tile + r < end ? width : 0;
                for (int column = threadIdx.x * PACK; column < other_columns;
                     column += pass_columns) {
                    if (column != own) {
                        add_pack<Norm>(own_sums.of_row[r], row_stats[r],
                                       load(dy + start + column), load(x + start + column),
                                       load(weight + column));
                    }
                }
            }
            const TileSums<Norm> tile_sums = block_sums<Norm>(own_sums, warps[buffer]);
            buffer = 1 - buffer;
#pragma unroll
            for (int r = 0; r < TILE_ROWS; r++) {
                if (tile + r < end && has_columns) {
                    const auto row = Norm::row(row_stats[r], tile_sums.of_row[r], width);
                    Pack result = unpacked(results[r]);
                    pack_backward<Norm>(result, sums, row, unpacked(gradients[r]),
                                        unpacked(values[r]), unpacked(factors));
                    const Packed rounded = packed(result);
                    store_packed(dx + i64(tile + r) * width + own, rounded);
                    if constexpr (Norm::HAS_BIAS) {
                        const Pack stored = unpacked(rounded);
#pragma unroll
                        for (int i = 0; i < PACK; i++) {
                            sums.dx.at[i] += stored.at[i];
                        }
                    }
                }
            }
        }
        if (has_columns) {
            const i64 start = i64(blockIdx.x) * width + own;
            store_floats<PACK>(weight_partials + start, sums.weight);
            if constexpr (Norm::HAS_BIAS) {
                store_floats<PACK>(bias_partials + start, sums.bias);
                store_floats<PACK>(dx_partials + start, sums.dx);
            }
        }
    }
}
