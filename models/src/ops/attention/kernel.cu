// Plain causal attention with grouped queries, for any T and any even D up to 256: one warp
// computes one row, or the deltas of a few. Scores exist only for 32 keys or queries at a time, one
// for each lane; for the products with them each lane has some columns of the row.
//
// A D that is no multiple of a pack is compiled with PAIR_ACCESS: its rows do not start at
// multiples of 16 bytes, but at pairs of elements.
//
// Rows of qkv (B, T, (H + 2 K) D) have the query heads, then the key heads, then the value heads;
// output is (B, T, H D), log sums and delta (B, H, T).
#include "common.cuh"

constexpr int WARPS = 4;
constexpr int MOST_WIDTH = 256;
// Columns of a lane: lane, lane + 32, lane + 64 ...
constexpr int LANE_COLUMNS = MOST_WIDTH / WARP;

// The elements of one access to a row.
#if defined(PAIR_ACCESS)

typedef Vector<2> Piece;

DEV Piece load_piece(const Element* from) { return load_pair(from); }

DEV Piece load_shared(const float* from) {
    const float2 pair = *reinterpret_cast<const float2*>(from);
    return {{pair.x, pair.y}};
}

DEV void store_shared(float* to, const Piece& piece) {
    *reinterpret_cast<float2*>(to) = float2{piece.at[0], piece.at[1]};
}

#else

typedef Pack Piece;

DEV Piece load_piece(const Element* from) { return load(from); }
DEV Piece load_shared(const float* from) { return load_floats<PACK>(from); }
DEV void store_shared(float* to, const Piece& piece) { store_floats(to, piece); }

#endif

constexpr int PIECE = sizeof(Piece) / sizeof(float);

struct Shape {
    int tokens;
    int heads;
    int key_value_heads;
    int head_width;
};

DEV int qkv_stride(const Shape& shape) {
    return (shape.heads + 2 * shape.key_value_heads) * shape.head_width;
}

DEV int output_stride(const Shape& shape) { return shape.heads * shape.head_width; }

// The first row of a head of qkv of this block's sequence: query heads, then keys, then values.
template <class T>
DEV T* qkv_head(T* qkv, const Shape& shape, int head) {
    const i64 sequence = i64(blockIdx.z) * shape.tokens * qkv_stride(shape);
    return qkv + sequence + head * shape.head_width;
}

template <class T>
DEV T* output_head(T* output, const Shape& shape, int head) {
    const i64 sequence = i64(blockIdx.z) * shape.tokens * output_stride(shape);
    return output + sequence + head * shape.head_width;
}

// The numbers of a head of log sums or delta.
template <class T>
DEV T* statistics_head(T* statistics, const Shape& shape, int head) {
    return statistics + (i64(blockIdx.z) * shape.heads + head) * shape.tokens;
}

// The row of this warp. Blocks of late rows, which see the most keys, start first.
DEV int late_row_first() { return (gridDim.x - 1 - blockIdx.x) * WARPS + warp_index(); }

// One row as f32, which all lanes of a warp read.
DEV void share_row(float* shared, const Element* row, int width) {
    for (int column = lane_index() * PIECE; column < width; column += WARP * PIECE) {
        store_shared(shared + column, load_piece(row + column));
    }
}

// The dot product of a shared row and a row in memory, by one lane.
DEV float dot(const float* shared, const Element* row, int width) {
    float sum = 0.0f;
#pragma unroll 2
    for (int column = 0; column < width; column += PIECE) {
        const Piece factors = load_shared(shared + column);
        const Piece values = load_piece(row + column);
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            sum += factors.at[i] * values.at[i];
        }
    }
    return sum;
}

// A row of results, spread over the lanes of a warp.
struct Sums {
    float at[LANE_COLUMNS];
};

// Adds `factor` of the first `count` lanes times the rows from `row` on, in their order.
DEV void add_rows(Sums& sums, float factor, const Element* row, i64 stride, int count, int width) {
#pragma unroll 2
    for (int source = 0; source < count; source++) {
        const float multiplier = __shfl_sync(ALL_LANES, factor, source);
        const Element* from = row + source * stride;
#pragma unroll
        for (int i = 0; i < LANE_COLUMNS; i++) {
            const int column = i * WARP + lane_index();
            if (column < width) {
                sums.at[i] += multiplier * widen(from[column]);
            }
        }
    }
}

DEV void store_row(Element* row, const Sums& sums, float factor, int width) {
#pragma unroll
    for (int i = 0; i < LANE_COLUMNS; i++) {
        const int column = i * WARP + lane_index();
        if (column < width) {
            row[column] = narrowed(sums.at[i] * factor);
        }
    }
}

// Writes output and log sums.
//
// Grid: (ceil(T / 4), H, B). Block: 128.
KERNEL void __launch_bounds__(WARPS* WARP, 4)
attention_forward(Element* __restrict__ output, float* __restrict__ log_sums,
                  const Element* __restrict__ qkv, int tokens, int heads, int key_value_heads,
                  float scale, int head_width) {
    __shared__ __align__(16) float queries[WARPS][MOST_WIDTH];
    const Shape shape = {tokens, heads, key_value_heads, head_width};
    const int row = late_row_first();
    if (row >= tokens) {
        return;
    }
    const int head = blockIdx.y;
    const int group = head / (heads / key_value_heads);
    const i64 stride = qkv_stride(shape);
    const Element* keys = qkv_head(qkv, shape, heads + group);
    const Element* values = qkv_head(qkv, shape, heads + key_value_heads + group);
    float* query = queries[warp_index()];
    share_row(query, qkv_head(qkv, shape, head) + row * stride, head_width);
    __syncwarp();

    Sums sums = {};
    float maximum = LOWEST;
    float total = 0.0f;
    for (int first = 0; first <= row; first += WARP) {
        const int key = first + lane_index();
        float score = LOWEST;
        if (key <= row) {
            score = dot(query, keys + key * stride, head_width) * scale;
        }
        const float higher = fmaxf(maximum, warp_max(score));
        const float correction = expf(maximum - higher);
        const float probability = expf(score - higher);
        maximum = higher;
        total = total * correction + warp_sum(probability);
#pragma unroll
        for (int i = 0; i < LANE_COLUMNS; i++) {
            sums.at[i] *= correction;
        }
        const int count = min(WARP, row + 1 - first);
        add_rows(sums, probability, values + first * stride, stride, count, head_width);
    }
    const i64 output_row = i64(row) * output_stride(shape);
    store_row(output_head(output, shape, head) + output_row, sums, 1.0f / total, head_width);
    if (lane_index() == 0) {
        statistics_head(log_sums, shape, head)[row] = maximum + logf(total);
    }
}
EXPORT_KERNEL(attention_forward)

// Lanes that share a row: a power of two, as few as read it in one access each.
DEV int lanes_of_row(int head_width) {
    int lanes = WARP;
    while (lanes > 1 && lanes / 2 * PIECE >= head_width) {
        lanes /= 2;
    }
    return lanes;
}

// Writes delta (B, H, T): for each row of a head, the dot product of doutput and output. A warp has
// 32 / lanes_of_row(D) rows.
//
// Grid: (ceil(T / rows of four warps), H, B). Block: 128.
KERNEL void __launch_bounds__(WARPS* WARP, 4)
attention_delta(float* __restrict__ delta, const Element* __restrict__ doutput,
                const Element* __restrict__ output, int tokens, int heads, int head_width) {
    const Shape shape = {tokens, heads, 0, head_width};
    const int lanes = lanes_of_row(head_width);
    const int row = (blockIdx.x * WARPS + warp_index()) * (WARP / lanes) + lane_index() / lanes;
    const int own_lane = lane_index() % lanes;
    const int head = blockIdx.y;
    const i64 start = i64(row) * output_stride(shape);
    const Element* gradients = output_head(doutput, shape, head) + start;
    const Element* values = output_head(output, shape, head) + start;
    const int columns = row < tokens ? head_width : 0;
    float sum = 0.0f;
    for (int column = own_lane * PIECE; column < columns; column += lanes * PIECE) {
        const Piece factors = load_piece(gradients + column);
        const Piece addends = load_piece(values + column);
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            sum += factors.at[i] * addends.at[i];
        }
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    }
    if (row < tokens && own_lane == 0) {
        statistics_head(delta, shape, head)[row] = sum;
    }
}
EXPORT_KERNEL(attention_delta)

// Writes the query columns of dqkv.
//
// Grid: (ceil(T / 4), H, B). Block: 128.
KERNEL void __launch_bounds__(WARPS* WARP, 4)
attention_backward_queries(Element* __restrict__ dqkv, const Element* __restrict__ doutput,
                           const Element* __restrict__ qkv, const float* __restrict__ log_sums,
                           const float* __restrict__ delta, int tokens, int heads,
                           int key_value_heads, float scale, int head_width) {
    __shared__ __align__(16) float queries[WARPS][MOST_WIDTH];
    __shared__ __align__(16) float gradients[WARPS][MOST_WIDTH];
    const Shape shape = {tokens, heads, key_value_heads, head_width};
    const int row = late_row_first();
    if (row >= tokens) {
        return;
    }
    const int head = blockIdx.y;
    const int group = head / (heads / key_value_heads);
    const i64 stride = qkv_stride(shape);
    const Element* keys = qkv_head(qkv, shape, heads + group);
    const Element* values = qkv_head(qkv, shape, heads + key_value_heads + group);
    const i64 output_row = i64(row) * output_stride(shape);
    float* query = queries[warp_index()];
    float* gradient = gradients[warp_index()];
    share_row(query, qkv_head(qkv, shape, head) + row * stride, head_width);
    share_row(gradient, output_head(doutput, shape, head) + output_row, head_width);
    __syncwarp();

    const float log_sum = statistics_head(log_sums, shape, head)[row];
    const float row_delta = statistics_head(delta, shape, head)[row];
    Sums sums = {};
    for (int first = 0; first <= row; first += WARP) {
        const int key = first + lane_index();
        float score_gradient = 0.0f;
        if (key <= row) {
            const float score = dot(query, keys + key * stride, head_width) * scale;
            const float weight_gradient = dot(gradient, values + key * stride, head_width);
            score_gradient = expf(score - log_sum) * (weight_gradient - row_delta);
        }
        const int count = min(WARP, row + 1 - first);
        add_rows(sums, score_gradient, keys + first * stride, stride, count, head_width);
    }
    store_row(qkv_head(dqkv, shape, head) + row * stride, sums, scale, head_width);
}
EXPORT_KERNEL(attention_backward_queries)

// Writes the key and value columns of dqkv, summed over the query heads of the group and over the
// queries from the key on, in this order.
//
// Grid: (ceil(T / 4), K, B). Block: 128.
KERNEL void __launch_bounds__(WARPS* WARP, 4)
attention_backward_keys(Element* __restrict__ dqkv, const Element* __restrict__ doutput,
                        const Element* __restrict__ qkv, const float* __restrict__ log_sums,
                        const float* __restrict__ delta, int tokens, int heads,
                        int key_value_heads, float scale, int head_width) {
    __shared__ __align__(16) float shared_keys[WARPS][MOST_WIDTH];
    __shared__ __align__(16) float shared_values[WARPS][MOST_WIDTH];
    const Shape shape = {tokens, heads, key_value_heads, head_width};
    // Early keys, which the most queries see, start first.
    const int row = blockIdx.x * WARPS + warp_index();
    if (row >= tokens) {
        return;
    }
    const int group = blockIdx.y;
    const int group_heads = heads / key_value_heads;
    const i64 stride = qkv_stride(shape);
    const int key_head = heads + group;
    const int value_head = key_head + key_value_heads;
    float* key = shared_keys[warp_index()];
    float* value = shared_values[warp_index()];
    share_row(key, qkv_head(qkv, shape, key_head) + row * stride, head_width);
    share_row(value, qkv_head(qkv, shape, value_head) + row * stride, head_width);
    __syncwarp();

    Sums key_sums = {};
    Sums value_sums = {};
    for (int head = group * group_heads; head < (group + 1) * group_heads; head++) {
        const Element* queries = qkv_head(qkv, shape, head);
        const Element* gradients = output_head(doutput, shape, head);
        const i64 output_row = output_stride(shape);
        for (int first = row; first < tokens; first += WARP) {
            const int query = first + lane_index();
            float probability = 0.0f;
            float score_gradient = 0.0f;
            if (query < tokens) {
                const float score = dot(key, queries + query * stride, head_width) * scale;
                const float weight_gradient =
                    dot(value, gradients + query * output_row, head_width);
                probability = expf(score - statistics_head(log_sums, shape, head)[query]);
                const float row_delta = statistics_head(delta, shape, head)[query];
                score_gradient = probability * (weight_gradient - row_delta);
            }
            const int count = min(WARP, tokens - first);
            const Element* gradient = gradients + first * output_row;
            add_rows(value_sums, probability, gradient, output_row, count, head_width);
            const Element* query_row = queries + first * stride;
            add_rows(key_sums, score_gradient, query_row, stride, count, head_width);
        }
    }
    store_row(qkv_head(dqkv, shape, key_head) + row * stride, key_sums, scale, head_width);
    store_row(qkv_head(dqkv, shape, value_head) + row * stride, value_sums, 1.0f, head_width);
}
EXPORT_KERNEL(attention_backward_keys)
