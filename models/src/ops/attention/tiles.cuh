// What the kernels of flash attention share, whichever instruction multiplies: where rows are, how
// the sums of a product lie in registers, softmax, its gradient, and what is masked.
#pragma once

#include "common.cuh"

#if !defined(HEAD_WIDTH)
#error "HEAD_WIDTH is 64 or 128"
#endif

constexpr int D = HEAD_WIDTH;
static_assert(D == 64 || D == 128, "HEAD_WIDTH is 64 or 128");

// ---- Where rows are ----

struct Shape {
    int tokens;
    int heads;
    int key_value_heads;
};

DEV int qkv_stride(const Shape& shape) { return (shape.heads + 2 * shape.key_value_heads) * D; }
DEV int output_stride(const Shape& shape) { return shape.heads * D; }

// A row of a head.
template <class T>
DEV T* row_at(T* head, int stride, int row) {
    return head + i64(row) * stride;
}

// The first row of a head of qkv: query heads, then keys, then values.
template <class T>
DEV T* qkv_head(T* qkv, const Shape& shape, int sequence, int head) {
    return row_at(qkv, qkv_stride(shape), sequence * shape.tokens) + head * D;
}

template <class T>
DEV T* output_head(T* output, const Shape& shape, int sequence, int head) {
    return row_at(output, output_stride(shape), sequence * shape.tokens) + head * D;
}

// The log sums or deltas of a head.
template <class T>
DEV T* statistics_head(T* statistics, const Shape& shape, int sequence, int head) {
    return statistics + (i64(sequence) * shape.heads + head) * shape.tokens;
}

// ---- Products in registers ----

// A lane's share of 16 M rows x N columns of sums, as mma.sync and wgmma lay them out: of each
// 16 x 8 block the rows lane / 4 and lane / 4 + 8, and in both the columns lane % 4 * 2 and the
// next.
template <int M, int N>
struct Sums {
    float at[M][N / 8][4];
};

// The row and the column of the i-th of four sums of a lane in its block.
DEV int block_row(int i) { return lane_index() / 4 + i / 2 * 8; }
DEV int block_column(int i) { return lane_index() % 4 * 2 + i % 2; }

// The same share of a left operand of 16 M rows x N columns.
template <int M, int N>
struct Operand {
    u32 at[M][N / 16][4];
};

template <int M, int N>
DEV Operand<M, N> narrowed_operand(const Sums<M, N>& sums) {
    Operand<M, N> operand;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            const float* left = sums.at[m][2 * n];
            const float* right = sums.at[m][2 * n + 1];
            operand.at[m][n][0] = bf16x2_pack(left[0], left[1]);
            operand.at[m][n][1] = bf16x2_pack(left[2], left[3]);
            operand.at[m][n][2] = bf16x2_pack(right[0], right[1]);
            operand.at[m][n][3] = bf16x2_pack(right[2], right[3]);
        }
    }
    return operand;
}

// Stores sums times a factor for each row to the rows of a head from `first` on.
template <int M>
DEV void store_rows(u16* head, int stride, int first, int tokens, const Sums<M, D>& sums,
                    const float (&factors)[M][2]) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = first + m * 16 + block_row(2 * half);
            const float factor = factors[m][half];
            if (row < tokens) {
                u16* to = row_at(head, stride, row) + block_column(0);
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    const float* pair = sums.at[m][n] + 2 * half;
                    *reinterpret_cast<u32*>(to + n * 8) =
                        bf16x2_pack(pair[0] * factor, pair[1] * factor);
                }
            }
        }
    }
}

// The same with one factor.
template <int M>
DEV void store_rows(u16* head, int stride, int first, int tokens, const Sums<M, D>& sums,
                    float factor) {
    float factors[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) {
        factors[m][0] = factor;
        factors[m][1] = factor;
    }
    store_rows<M>(head, stride, first, tokens, sums, factors);
}

// The rows of scores; the others are the columns.
enum class Rows { QUERIES, KEYS };

// Masks the scores of queries for keys after them, where the first key of a tile comes `ahead`
// after the first query.
template <Rows ROWS, int M, int N>
DEV void mask(Sums<M, N>& scores, int ahead) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = m * 16 + block_row(i);
                const int column = n * 8 + block_column(i);
                const int query = ROWS == Rows::QUERIES ? row : column;
                const int key = ROWS == Rows::QUERIES ? column : row;
                const bool masked = ahead + key > query;
                scores.at[m][n][i] = masked ? LOWEST : scores.at[m][n][i];
            }
        }
    }
}

// ---- Softmax ----

// Over the four lanes that share a row.
DEV float row_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
    return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
}

DEV float row_sum(float value) {
    value += __shfl_xor_sync(ALL_LANES, value, 1);
    return value + __shfl_xor_sync(ALL_LANES, value, 2);
}

// Of the keys so far, for two rows of each block of 16: the maximum of the scores before scaling,
// and this lane's part of the sum of exponentials relative to it.
template <int M>
struct Softmax {
    float maximum[M][2];
    float sum[M][2];
};

template <int M>
DEV Softmax<M> empty_softmax() {
    Softmax<M> softmax;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            softmax.maximum[m][half] = LOWEST;
            softmax.sum[m][half] = 0.0f;
        }
    }
    return softmax;
}

// Scales the output of the keys before: of one of two rows of a block of 16.
template <int M>
DEV void rescale(Sums<M, D>& output, int m, int half, float correction) {
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        output.at[m][n][2 * half] *= correction;
        output.at[m][n][2 * half + 1] *= correction;
    }
}

// Replaces the scores of further keys by exponentials relative to the maximum, and scales the sums
// so far where that rises. Calls `corrected(m, half, correction)` to have the output scaled as
// well. `scale` has the factor log2(e).
template <int M, int N, class Corrected>
DEV void exponentiate(Sums<M, N>& scores, Softmax<M>& softmax, float scale, Corrected corrected) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float maximum = softmax.maximum[m][half];
#pragma unroll
            for (int n = 0; n < N / 8; n++) {
                const float* pair = scores.at[m][n] + 2 * half;
                maximum = fmaxf(maximum, fmaxf(pair[0], pair[1]));
            }
            maximum = row_max(maximum);
            const float correction = fast_exp2((softmax.maximum[m][half] - maximum) * scale);
            softmax.maximum[m][half] = maximum;
            const float start = maximum * scale;
            float sum = softmax.sum[m][half] * correction;
#pragma unroll
            for (int n = 0; n < N / 8; n++) {
                float* pair = scores.at[m][n] + 2 * half;
                pair[0] = fast_exp2(pair[0] * scale - start);
                pair[1] = fast_exp2(pair[1] * scale - start);
                sum += pair[0] + pair[1];
            }
            softmax.sum[m][half] = sum;
            corrected(m, half, correction);
        }
    }
}

// Stores what a warp computed of rows from `first` on: outputs and log sums.
template <int M>
DEV void store_forward(u16* output, int stride, float* log_sums, int first, int tokens,
                       const Sums<M, D>& sums, const Softmax<M>& softmax, float scale) {
    float factors[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float sum = row_sum(softmax.sum[m][half]);
            factors[m][half] = 1.0f / sum;
            const int query = first + m * 16 + block_row(2 * half);
            if (query < tokens && lane_index() % 4 == 0) {
                log_sums[query] = softmax.maximum[m][half] * scale + logf(sum);
            }
        }
    }
    store_rows<M>(output, stride, first, tokens, sums, factors);
}

// ---- The gradient of softmax ----

// Log sum, in powers of two, and delta of two rows of each block of 16.
template <int M>
struct RowStatistics {
    float log_sum[M][2];
    float delta[M][2];
};

template <int M>
DEV RowStatistics<M> load_statistics(const float* log_sums, const float* delta, int first,
                                     int tokens) {
    RowStatistics<M> statistics;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = first + m * 16 + block_row(2 * half);
            const bool valid = row < tokens;
            statistics.log_sum[m][half] = valid ? log_sums[row] * LOG2_E : 0.0f;
            statistics.delta[m][half] = valid ? delta[row] : 0.0f;
        }
    }
    return statistics;
}

// Replaces the gradients of probabilities by those of scores: dS = P (dP - delta).
template <int M, int N>
DEV void score_gradients(Sums<M, N>& gradients, const Sums<M, N>& scores,
                         const RowStatistics<M>& statistics, float scale) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float log_sum = statistics.log_sum[m][i / 2];
                const float probability = fast_exp2(scores.at[m][n][i] * scale - log_sum);
                gradients.at[m][n][i] =
                    probability * (gradients.at[m][n][i] - statistics.delta[m][i / 2]);
            }
        }
    }
}

// Replaces scores by probabilities and the gradients of these by those of scores, all transposed:
// the statistics, of a tile of queries, belong to columns.
template <int M, int N>
DEV void transposed_gradients(Sums<M, N>& scores, Sums<M, N>& gradients, const float* log_sums,
                              const float* delta, float scale) {
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float log_sum = log_sums[n * 8 + block_column(i)];
            const float column_delta = delta[n * 8 + block_column(i)];
#pragma unroll
            for (int m = 0; m < M; m++) {
                const float probability = fast_exp2(scores.at[m][n][i] * scale - log_sum);
                scores.at[m][n][i] = probability;
                gradients.at[m][n][i] = probability * (gradients.at[m][n][i] - column_delta);
            }
        }
    }
}

// ---- Tiles of queries, for the gradient of keys ----

// A tile of queries of a query head, from `query` on.
struct QueryTile {
    int head;
    int query;
};

// The one QUERIES after it: the head's next queries, or the first of the next head that see a
// block's keys.
template <int QUERIES>
DEV QueryTile tile_after(QueryTile tile, int first_key, int tokens) {
    const int query = tile.query + QUERIES;
    return query < tokens ? QueryTile{tile.head, query} : QueryTile{tile.head + 1, first_key};
}

// A number for each of the first 2 QUERIES threads: log sums in powers of two, then deltas.
template <int QUERIES>
DEV float load_statistic(const float* log_sums, const float* delta, const Shape& shape,
                         int sequence, QueryTile tile) {
    const int query = tile.query + threadIdx.x % QUERIES;
    if (threadIdx.x >= 2 * QUERIES || query >= shape.tokens) {
        return 0.0f;
    }
    if (threadIdx.x < QUERIES) {
        return statistics_head(log_sums, shape, sequence, tile.head)[query] * LOG2_E;
    }
    return statistics_head(delta, shape, sequence, tile.head)[query];
}
