// Flash attention (Dao, arXiv 2307.08691) on tensor cores: causal, grouped queries, bf16, any T, D
// of 64 or 128 (HEAD_WIDTH). Layouts are those of kernel.cu, whose attention_delta it uses.
//
// Products are mma.sync of 16 x 8 x 16. A product's sums lie in registers just as the left operand
// of the next one does, so scores and their gradients never leave the registers. Backward computes
// them twice, in one kernel for the queries and, transposed, in one for keys and values: each
// result is summed by one warp in a fixed order, without atomics and without a workspace.
//
// Rows beyond T are zero in shared memory. As keys they are masked like all keys after the query;
// as queries they add zeros; their results are not stored.
#include "attention/tiles.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP;

// ---- Tiles in shared memory ----

// Where a row of D starts in a tile; a column, a multiple of 8, is combined with it by exclusive
// or. This permutes a row's 16-byte pieces, so that eight of them below each other, which ldmatrix
// reads at once, lie in different banks.
DEV int row_offset(int row) { return row * D ^ row % 8 * 8; }

// Starts copying rows `first` to `first` + ROWS of a head to a tile; zeros beyond `tokens`. A
// thread copies one piece of every few rows. Were this unrolled, the compiler would keep an address
// of each in registers.
template <int ROWS>
DEV void copy_rows(u16* tile, const u16* head, int stride, int first, int tokens) {
    constexpr int PIECES = D / 8;
    constexpr int STEP = THREADS / PIECES;
    static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "a thread's rows are permuted alike");
    const int own_row = threadIdx.x / PIECES;
    const int column = threadIdx.x % PIECES * 8;
    u16* to = tile + (row_offset(own_row) ^ column);
#pragma unroll 1
    for (int row = 0; row < ROWS; row += STEP) {
        const int source = first + own_row + row;
        const bool valid = source < tokens;
        cp_async16(to + row * D, row_at(head, stride, valid ? source : 0) + column, valid);
    }
}

// ---- Products ----

// Adds the product of one left operand and the two right operands that one ldmatrix loads.
DEV void multiply_add(float (&first)[4], float (&second)[4], const u32 (&left)[4],
                      const u32 (&right)[4]) {
    const u32 first_right[2] = {right[0], right[1]};
    const u32 second_right[2] = {right[2], right[3]};
    mma16816(first, left, first_right);
    mma16816(second, left, second_right);
}

// 16 M rows of `left`, from `left_row` on, times N rows of `right` transposed.
template <int M, int N>
DEV Sums<M, N> multiply_transposed(u16* left, int left_row, u16* right) {
    const int lane = lane_index();
    const int left_offset = row_offset(left_row + lane % 16) ^ lane / 16 * 8;
    const int right_offset = row_offset(lane / 16 * 8 + lane % 8) ^ lane / 8 % 2 * 8;
    Sums<M, N> sums = {};
    // Unrolled in full, D = 128 would need more registers than there are.
#pragma unroll 4
    for (int k = 0; k < D; k += 16) {
        u32 rows[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            ldmatrix_x4(rows[m], left + (left_offset ^ k) + m * 16 * D);
        }
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            u32 columns[4];
            ldmatrix_x4(columns, right + (right_offset ^ k) + n * 16 * D);
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add(sums.at[m][2 * n], sums.at[m][2 * n + 1], rows[m], columns);
            }
        }
    }
    return sums;
}

// Adds the product of `left` (16 M rows, N columns) and N rows of `right`.
template <int M, int N>
DEV void add_product(Sums<M, D>& sums, const Operand<M, N>& left, u16* right) {
    const int lane = lane_index();
    const int right_offset = row_offset(lane % 16) ^ lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            u32 columns[4];
            ldmatrix_x4_trans(columns, right + (right_offset ^ n * 16) + k * 16 * D);
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add(sums.at[m][2 * n], sums.at[m][2 * n + 1], left.at[m][k], columns);
            }
        }
    }
}

// ---- Forward ----

// A block computes 128 queries, a warp 32 of them, against 64 keys at a time.
constexpr int FORWARD_M = 2;
constexpr int FORWARD_WARP_QUERIES = 16 * FORWARD_M;
constexpr int FORWARD_QUERIES = WARPS * FORWARD_WARP_QUERIES;
constexpr int FORWARD_KEYS = 64;

// Writes output (B, T, H D) and log sums (B, H, T). Keys and values have one tile each: values are
// copied while scores are computed, the next keys while values are multiplied.
//
// Grid: (H, B, ceil(T / 128)). Block: 128. Dynamic shared memory: 512 D bytes (32,768 or 65,536).
KERNEL void __launch_bounds__(THREADS, 2)
flash_forward(u16* __restrict__ output, float* __restrict__ log_sums,
              const u16* __restrict__ qkv, int tokens, int heads, int key_value_heads,
              float scale) {
    DYNAMIC_SHARED(memory);
    u16* queries = reinterpret_cast<u16*>(memory);
    u16* keys = queries + FORWARD_QUERIES * D;
    u16* values = keys + FORWARD_KEYS * D;

    const Shape shape = {tokens, heads, key_value_heads};
    const int head = blockIdx.x;
    const int sequence = blockIdx.y;
    // Late queries, which see the most keys, start first.
    const int first_query = (gridDim.z - 1 - blockIdx.z) * FORWARD_QUERIES;
    const int warp_row = warp_index() * FORWARD_WARP_QUERIES;
    const int warp_query = first_query + warp_row;
    const int key_head = heads + head / (heads / key_value_heads);
    const int stride = qkv_stride(shape);
    const u16* query_rows = qkv_head(qkv, shape, sequence, head);
    const u16* key_rows = qkv_head(qkv, shape, sequence, key_head);
    const u16* value_rows = qkv_head(qkv, shape, sequence, key_head + key_value_heads);

    Softmax<FORWARD_M> softmax = empty_softmax<FORWARD_M>();
    Sums<FORWARD_M, D> sums = {};
    copy_rows<FORWARD_QUERIES>(queries, query_rows, stride, first_query, tokens);
    copy_rows<FORWARD_KEYS>(keys, key_rows, stride, 0, tokens);
    cp_async_commit();
    const int end = min(tokens, first_query + FORWARD_QUERIES);
    for (int key = 0; key < end; key += FORWARD_KEYS) {
        cp_async_wait<0>();
        __syncthreads();  // The keys are there, and every warp is done with the values.
        copy_rows<FORWARD_KEYS>(values, value_rows, stride, key, tokens);
        cp_async_commit();
        // Whether a query of this warp sees a key of the tile.
        const bool is_seen = key < warp_query + FORWARD_WARP_QUERIES;
        Operand<FORWARD_M, FORWARD_KEYS> probabilities;
        if (is_seen) {
            auto scores = multiply_transposed<FORWARD_M, FORWARD_KEYS>(queries, warp_row, keys);
            if (key + FORWARD_KEYS - 1 > warp_query) {
                mask<Rows::QUERIES>(scores, key - warp_query);
            }
            exponentiate(scores, softmax, scale * LOG2_E, [&](int m, int half, float correction) {
                rescale(sums, m, half, correction);
            });
            // Before the barrier: half as many registers live across it.
            probabilities = narrowed_operand(scores);
        }
        cp_async_wait<0>();
        __syncthreads();  // The values are there, and every warp is done with the keys.
        if (key + FORWARD_KEYS < end) {
            copy_rows<FORWARD_KEYS>(keys, key_rows, stride, key + FORWARD_KEYS, tokens);
            cp_async_commit();
        }
        if (is_seen) {
            add_product(sums, probabilities, values);
        }
    }

    float* head_log_sums = statistics_head(log_sums, shape, sequence, head);
    u16* output_rows = output_head(output, shape, sequence, head);
    store_forward<FORWARD_M>(output_rows, output_stride(shape), head_log_sums, warp_query, tokens,
                             sums, softmax, scale);
}
EXPORT_KERNEL(flash_forward)

// ---- Backward of the queries ----

// A block computes 128 queries, a warp 32 of them, against 64 keys at a time (D = 64) or 32
// (D = 128), of which there are two tiles: one is copied while the other is used. Two blocks with
// 64 keys do not fit into a multiprocessor with 100 KiB of shared memory.
#if defined(__CUDA_ARCH__)
constexpr bool HAS_LITTLE_SHARED_MEMORY =
    __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200;
#else
constexpr bool HAS_LITTLE_SHARED_MEMORY = false;
#endif
constexpr int QUERIES_M = 2;
constexpr int QUERIES_WARP_ROWS = 16 * QUERIES_M;
constexpr int QUERIES_ROWS = WARPS * QUERIES_WARP_ROWS;
constexpr int QUERIES_KEYS = D == 64 && !HAS_LITTLE_SHARED_MEMORY ? 64 : 32;

// Writes the query columns of dqkv.
//
// Grid: (H, B, ceil(T / 128)). Block: 128. Dynamic shared memory: 768 D bytes (49,152 or 98,304),
// with 64 keys 65,536.
KERNEL void __launch_bounds__(THREADS, 2)
flash_backward_queries(u16* __restrict__ dqkv, const u16* __restrict__ doutput,
                       const u16* __restrict__ qkv, const float* __restrict__ log_sums,
                       const float* __restrict__ delta, int tokens, int heads,
                       int key_value_heads, float scale) {
    DYNAMIC_SHARED(memory);
    constexpr int TILE = QUERIES_KEYS * D;
    u16* queries = reinterpret_cast<u16*>(memory);
    u16* gradients = queries + QUERIES_ROWS * D;
    u16* keys = gradients + QUERIES_ROWS * D;
    u16* values = keys + 2 * TILE;

    const Shape shape = {tokens, heads, key_value_heads};
    const int head = blockIdx.x;
    const int sequence = blockIdx.y;
    const int first_query = (gridDim.z - 1 - blockIdx.z) * QUERIES_ROWS;
    const int warp_row = warp_index() * QUERIES_WARP_ROWS;
    const int warp_query = first_query + warp_row;
    const int key_head = heads + head / (heads / key_value_heads);
    const int stride = qkv_stride(shape);
    const u16* query_rows = qkv_head(qkv, shape, sequence, head);
    const u16* gradient_rows = output_head(doutput, shape, sequence, head);
    const u16* key_rows = qkv_head(qkv, shape, sequence, key_head);
    const u16* value_rows = qkv_head(qkv, shape, sequence, key_head + key_value_heads);
    const auto statistics = load_statistics<QUERIES_M>(
        statistics_head(log_sums, shape, sequence, head),
        statistics_head(delta, shape, sequence, head), warp_query, tokens);

    Sums<QUERIES_M, D> sums = {};
    copy_rows<QUERIES_ROWS>(queries, query_rows, stride, first_query, tokens);
    copy_rows<QUERIES_ROWS>(gradients, gradient_rows, output_stride(shape), first_query, tokens);
    copy_rows<QUERIES_KEYS>(keys, key_rows, stride, 0, tokens);
    copy_rows<QUERIES_KEYS>(values, value_rows, stride, 0, tokens);
    cp_async_commit();
    const int end = min(tokens, first_query + QUERIES_ROWS);
    int buffer = 0;
    for (int key = 0; key < end; key += QUERIES_KEYS) {
        cp_async_wait<0>();
        __syncthreads();  // This tile is there, and every warp is done with the other.
        const int next = key + QUERIES_KEYS;
        if (next < end) {
            const int other = (1 - buffer) * TILE;
            copy_rows<QUERIES_KEYS>(keys + other, key_rows, stride, next, tokens);
            copy_rows<QUERIES_KEYS>(values + other, value_rows, stride, next, tokens);
            cp_async_commit();
        }
        u16* tile_keys = keys + buffer * TILE;
        u16* tile_values = values + buffer * TILE;
        buffer = 1 - buffer;
        if (key >= warp_query + QUERIES_WARP_ROWS) {
            continue;  // No query of this warp sees a key of the tile.
        }
        auto scores = multiply_transposed<QUERIES_M, QUERIES_KEYS>(queries, warp_row, tile_keys);
        if (next - 1 > warp_query) {
            mask<Rows::QUERIES>(scores, key - warp_query);
        }
        auto products =
            multiply_transposed<QUERIES_M, QUERIES_KEYS>(gradients, warp_row, tile_values);
        score_gradients(products, scores, statistics, scale * LOG2_E);
        add_product(sums, narrowed_operand(products), tile_keys);
    }
    u16* output_rows = qkv_head(dqkv, shape, sequence, head);
    store_rows<QUERIES_M>(output_rows, stride, warp_query, tokens, sums, scale);
}
EXPORT_KERNEL(flash_backward_queries)

// ---- Backward of keys and values ----

// A block computes 128 keys (D = 64) or 64 (D = 128), a warp a quarter of them, against 32 queries
// at a time, of which there are two tiles.
constexpr int KEYS_M = 128 / D;
constexpr int KEYS_WARP_ROWS = 16 * KEYS_M;
constexpr int KEYS_ROWS = WARPS * KEYS_WARP_ROWS;
constexpr int KEYS_QUERIES = 32;

// Writes the key and value columns of dqkv, summed over the query heads of the group and the
// queries from the key on, in this order.
//
// Grid: (K, B, ceil(T D / 8192)). Block: 128. Dynamic shared memory: 49,664 bytes (D = 64) or
// 66,048 (D = 128).
KERNEL void __launch_bounds__(THREADS, 2)
flash_backward_keys(u16* __restrict__ dqkv, const u16* __restrict__ doutput,
                    const u16* __restrict__ qkv, const float* __restrict__ log_sums,
                    const float* __restrict__ delta, int tokens, int heads, int key_value_heads,
                    float scale) {
    DYNAMIC_SHARED(memory);
    constexpr int TILE = KEYS_QUERIES * D;
    u16* keys = reinterpret_cast<u16*>(memory);
    u16* values = keys + KEYS_ROWS * D;
    u16* queries = values + KEYS_ROWS * D;
    u16* gradients = queries + 2 * TILE;
    // For each of two tiles: log sums in powers of two, then deltas.
    float* statistics = reinterpret_cast<float*>(gradients + 2 * TILE);

    const Shape shape = {tokens, heads, key_value_heads};
    const int group = blockIdx.x;
    const int sequence = blockIdx.y;
    // Early keys, which the most queries see, start first.
    const int first_key = blockIdx.z * KEYS_ROWS;
    const int warp_row = warp_index() * KEYS_WARP_ROWS;
    const int warp_key = first_key + warp_row;
    const int key_head = heads + group;
    const int value_head = key_head + key_value_heads;
    const int stride = qkv_stride(shape);
    const int group_heads = heads / key_value_heads;
    const int end_head = (group + 1) * group_heads;

    const auto copy_tile = [&](QueryTile tile, int buffer) {
        const u16* query_rows = qkv_head(qkv, shape, sequence, tile.head);
        const u16* gradient_rows = output_head(doutput, shape, sequence, tile.head);
        copy_rows<KEYS_QUERIES>(queries + buffer * TILE, query_rows, stride, tile.query, tokens);
        copy_rows<KEYS_QUERIES>(gradients + buffer * TILE, gradient_rows, output_stride(shape),
                                tile.query, tokens);
    };
    const auto load_own_statistic = [&](QueryTile tile) {
        return load_statistic<KEYS_QUERIES>(log_sums, delta, shape, sequence, tile);
    };
    const auto store_statistic = [&](float statistic, int buffer) {
        if (threadIdx.x < 2 * KEYS_QUERIES) {
            statistics[buffer * 2 * KEYS_QUERIES + threadIdx.x] = statistic;
        }
    };

    Sums<KEYS_M, D> key_sums = {};
    Sums<KEYS_M, D> value_sums = {};
    const u16* key_rows = qkv_head(qkv, shape, sequence, key_head);
    const u16* value_rows = qkv_head(qkv, shape, sequence, value_head);
    copy_rows<KEYS_ROWS>(keys, key_rows, stride, first_key, tokens);
    copy_rows<KEYS_ROWS>(values, value_rows, stride, first_key, tokens);
    QueryTile tile = {group * group_heads, first_key};
    int buffer = 0;
    copy_tile(tile, buffer);
    cp_async_commit();
    store_statistic(load_own_statistic(tile), buffer);
    while (tile.head < end_head) {
        cp_async_wait<0>();
        __syncthreads();  // This tile is there, and every warp is done with the other.
        const QueryTile next = tile_after<KEYS_QUERIES>(tile, first_key, tokens);
        const bool more = next.head < end_head;
        float next_statistic = 0.0f;
        if (more) {
            copy_tile(next, 1 - buffer);
            cp_async_commit();
            next_statistic = load_own_statistic(next);
        }
        u16* tile_queries = queries + buffer * TILE;
        u16* tile_gradients = gradients + buffer * TILE;
        const float* tile_statistics = statistics + buffer * 2 * KEYS_QUERIES;

        auto scores = multiply_transposed<KEYS_M, KEYS_QUERIES>(keys, warp_row, tile_queries);
        if (tile.query < warp_key + KEYS_WARP_ROWS - 1) {
            mask<Rows::KEYS>(scores, warp_key - tile.query);
        }
        auto products =
            multiply_transposed<KEYS_M, KEYS_QUERIES>(values, warp_row, tile_gradients);
        transposed_gradients(scores, products, tile_statistics, tile_statistics + KEYS_QUERIES,
                             scale * LOG2_E);
        add_product(value_sums, narrowed_operand(scores), tile_gradients);
        add_product(key_sums, narrowed_operand(products), tile_queries);
        if (more) {
            store_statistic(next_statistic, 1 - buffer);
        }
        tile = next;
        buffer = 1 - buffer;
    }
    u16* dkeys = qkv_head(dqkv, shape, sequence, key_head);
    u16* dvalues = qkv_head(dqkv, shape, sequence, value_head);
    store_rows<KEYS_M>(dkeys, stride, warp_key, tokens, key_sums, scale);
    store_rows<KEYS_M>(dvalues, stride, warp_key, tokens, value_sums, 1.0f);
}
EXPORT_KERNEL(flash_backward_keys)
