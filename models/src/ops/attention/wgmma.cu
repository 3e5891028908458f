// Flash attention by the instructions that warpgroups of Hopper have for tensor cores (wgmma):
// the method, the shapes, the arguments and the results of flash.cu, for sm_90a alone.
//
// A warpgroup computes 64 rows. Its left operands are in registers, where a product's sums lie as
// the left operand of the next one, or in shared memory; right operands are in shared memory. Each
// tile there serves both as its rows and transposed: tiles of keys, of values, of queries and of
// gradients are copied once. Products run beside the exponentials of other scores.
//
// wgmma reads shared memory through another proxy than copies write it: behind the wait for copies
// there is a fence, before the barrier.
#include "attention/tiles.cuh"

constexpr int WARPGROUP_ROWS = 64;
constexpr int WARPGROUPS = 2;
constexpr int THREADS = WARPGROUPS * 4 * WARP;
// Rows of a block.
constexpr int BLOCK_ROWS = WARPGROUPS * WARPGROUP_ROWS;

DEV int warpgroup_index() { return warp_index() / 4; }

// ---- Tiles in shared memory ----

// A tile consists of panels of 64 columns, whose rows of 128 bytes are swizzled as wgmma wants it.
constexpr int PANEL_COLUMNS = 64;
// Rows after which the swizzle repeats.
constexpr int SWIZZLED_ROWS = 8;
constexpr int SWIZZLED_BYTES = SWIZZLED_ROWS * PANEL_COLUMNS * 2;

// Where a column, a multiple of 8, of a row lies in a tile of ROWS rows.
template <int ROWS>
DEV int tile_offset(int row, int column) {
    const int panel = column / PANEL_COLUMNS * ROWS * PANEL_COLUMNS;
    return panel + row * PANEL_COLUMNS + (column % PANEL_COLUMNS ^ row % SWIZZLED_ROWS * 8);
}

// Starts copying rows `first` to `first` + ROWS of a head to a tile; zeros beyond `tokens`.
template <int ROWS>
DEV void copy_rows(u16* tile, const u16* head, int stride, int first, int tokens) {
    constexpr int PIECES = D / 8;
    constexpr int STEP = THREADS / PIECES;
    static_assert(STEP % SWIZZLED_ROWS == 0 && ROWS % STEP == 0, "a thread's rows are alike");
    const int own_row = threadIdx.x / PIECES;
    const int column = threadIdx.x % PIECES * 8;
    u16* to = tile + tile_offset<ROWS>(own_row, column);
#pragma unroll 1
    for (int row = 0; row < ROWS; row += STEP) {
        const int source = first + own_row + row;
        const bool valid = source < tokens;
        cp_async16(to + row * PANEL_COLUMNS, row_at(head, stride, valid ? source : 0) + column,
                   valid);
    }
}

// Waits for the block's copies, after which wgmma sees them.
DEV void wait_for_copies() {
    cp_async_wait<0>();
    fence_proxy_async();
    __syncthreads();
}

// A tile of ROWS rows as wgmma reads it, from `row` on, a multiple of 8.
template <int ROWS>
DEV u64 tile_descriptor(const u16* tile, int row = 0) {
    constexpr int PANEL_BYTES = ROWS * PANEL_COLUMNS * 2;
    return matrix_descriptor(tile + row * PANEL_COLUMNS, PANEL_BYTES, SWIZZLED_BYTES);
}

// The same tile from a column on, for products that sum over columns.
template <int ROWS>
DEV u64 at_column(u64 tile, int column) {
    const int panel = column / PANEL_COLUMNS * ROWS * PANEL_COLUMNS;
    return tile + (panel + column % PANEL_COLUMNS) * 2 / 16;
}

// The same tile from a row on, for products that sum over rows.
DEV u64 at_row(u64 tile, int row) { return tile + row * PANEL_COLUMNS * 2 / 16; }

// ---- Products ----

// This warp's 16 of 64 rows of a tile, from `first` on, as a left operand.
template <int ROWS>
DEV Operand<1, D> load_operand(u16* tile, int first) {
    const int row = first + warp_index() % 4 * 16 + lane_index() % 16;
    const int column = lane_index() / 16 * 8;
    Operand<1, D> operand;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        ldmatrix_x4(operand.at[0][k], tile + tile_offset<ROWS>(row, k * 16 + column));
    }
    return operand;
}

// Starts `left` times a tile of N rows transposed.
template <int N>
DEV void start_transposed(Sums<1, N>& sums, const Operand<1, D>& left, const u16* tile) {
    const u64 right = tile_descriptor<N>(tile);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        wgmma<Major::K>(sums.at[0], left.at[0][k], at_column<N>(right, k * 16), k > 0);
    }
    wgmma_commit();
}

// Starts 64 rows of a tile of ROWS rows, which `left` describes, times a tile of N rows transposed.
template <int ROWS, int N>
DEV void start_transposed(Sums<1, N>& sums, u64 left, const u16* tile) {
    const u64 right = tile_descriptor<N>(tile);
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        wgmma<Major::K>(sums.at[0], at_column<ROWS>(left, k), at_column<N>(right, k), k > 0);
    }
    wgmma_commit();
}

// Starts adding the product of `left` and a tile of N rows.
template <int N>
DEV void start_added(Sums<1, D>& sums, const Operand<1, N>& left, const u16* tile) {
    const u64 right = tile_descriptor<N>(tile);
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        wgmma<Major::MN>(sums.at[0], left.at[0][k], at_row(right, k * 16), 1);
    }
    wgmma_commit();
}

// Keeps the wait that follows behind the computation of all values.
template <int N>
DEV void compute_before_wait(const Sums<1, N>& values) {
    u32 bits = 0xffffffffu;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bits &= __float_as_uint(values.at[0][n][i]);
        }
    }
    compute_before_wait(__uint_as_float(bits));
}

// ---- Forward ----

// A block computes 128 queries against 64 keys (D = 64) or 128 (D = 128) at a time.
constexpr int FORWARD_KEYS = D;
// With D = 64, a multiprocessor has two blocks.
constexpr int FORWARD_BLOCKS = 128 / D;

// Writes output (B, T, H D) and log sums (B, H, T). There are two tiles of keys and two of values:
// while the scores of a tile of keys are computed, the product with the values before is, and the
// next ones are copied.
//
// Grid: (H, B, ceil(T / 128)). Block: 256. Dynamic shared memory: 49,152 bytes (D = 64) or 163,840.
KERNEL void __launch_bounds__(THREADS, FORWARD_BLOCKS)
wgmma_forward(u16* __restrict__ output, float* __restrict__ log_sums, const u16* __restrict__ qkv,
              int tokens, int heads, int key_value_heads, float scale) {
    DYNAMIC_SHARED(memory);
    constexpr int TILE = FORWARD_KEYS * D;
    u16* queries = reinterpret_cast<u16*>(memory);
    u16* keys = queries + BLOCK_ROWS * D;
    u16* values = keys + 2 * TILE;

    const Shape shape = {tokens, heads, key_value_heads};
    const int head = blockIdx.x;
    const int sequence = blockIdx.y;
    // Late queries, which see the most keys, start first.
    const int first_query = (gridDim.z - 1 - blockIdx.z) * BLOCK_ROWS;
    const int group_row = warpgroup_index() * WARPGROUP_ROWS;
    const int group_query = first_query + group_row;
    const int warp_query = first_query + warp_index() * 16;
    const int key_head = heads + head / (heads / key_value_heads);
    const int stride = qkv_stride(shape);
    const u16* query_rows = qkv_head(qkv, shape, sequence, head);
    const u16* key_rows = qkv_head(qkv, shape, sequence, key_head);
    // Not by qkv_head, whose result would be kept: with D = 64 there is no register for it.
    const u16* value_rows = key_rows + key_value_heads * D;
    // Tiles of keys that the block's queries see, and those that this warpgroup's see.
    const int tiles = (min(tokens, first_query + BLOCK_ROWS) - 1) / FORWARD_KEYS + 1;
    const int own_tiles = (min(tokens, group_query + WARPGROUP_ROWS) - 1) / FORWARD_KEYS + 1;

    const auto keys_of = [&](int tile) { return keys + tile % 2 * TILE; };
    const auto values_of = [&](int tile) { return values + tile % 2 * TILE; };
    const auto copy_tile = [&](u16* to, const u16* rows, int tile) {
        if (tile < tiles) {
            copy_rows<FORWARD_KEYS>(to, rows, stride, tile * FORWARD_KEYS, tokens);
        }
    };
    // What is not read while the product with the values of a tile is computed.
    const auto copy_beside = [&](int tile) {
        copy_tile(keys_of(tile + 2), key_rows, tile + 2);
        copy_tile(values_of(tile + 1), value_rows, tile + 1);
        cp_async_commit();
    };

    copy_rows<BLOCK_ROWS>(queries, query_rows, stride, first_query, tokens);
    copy_tile(keys_of(0), key_rows, 0);
    cp_async_commit();
    wait_for_copies();
    copy_beside(-1);

    const Operand<1, D> left = load_operand<BLOCK_ROWS>(queries, group_row);
    Softmax<1> softmax = empty_softmax<1>();
    Sums<1, D> sums = {};
    Sums<1, FORWARD_KEYS> scores = {};
    float corrections[2];
    const auto exponentiate_tile = [&](int tile) {
        const int key = tile * FORWARD_KEYS;
        if (key + FORWARD_KEYS - 1 > warp_query) {
            mask<Rows::QUERIES>(scores, key - warp_query);
        }
        exponentiate(scores, softmax, scale * LOG2_E, [&](int, int half, float correction) {
            corrections[half] = correction;
        });
    };
    wgmma_fence();
    start_transposed(scores, left, keys_of(0));
    wgmma_wait<0>(scores.at[0], left.at[0]);
    exponentiate_tile(0);
    Operand<1, FORWARD_KEYS> probabilities = narrowed_operand(scores);

    for (int tile = 0; tile < tiles; tile++) {
        wait_for_copies();  // And every warp is done with the tiles before.
        if (tile + 1 < own_tiles) {
            wgmma_fence();
            start_transposed(scores, left, keys_of(tile + 1));
            start_added(sums, probabilities, values_of(tile));
            copy_beside(tile);
            wgmma_wait<1>(scores.at[0], left.at[0]);
            exponentiate_tile(tile + 1);
            compute_before_wait(softmax.sum[0][0] + softmax.sum[0][1]);
            wgmma_wait<0>(sums.at[0], probabilities.at[0]);
            rescale(sums, 0, 0, corrections[0]);
            rescale(sums, 0, 1, corrections[1]);
            probabilities = narrowed_operand(scores);
        } else {
            copy_beside(tile);
            if (tile < own_tiles) {
                wgmma_fence();
                start_added(sums, probabilities, values_of(tile));
                wgmma_wait<0>(sums.at[0], probabilities.at[0]);
            }
        }
    }

    u16* output_rows = output_head(output, shape, sequence, head);
    float* head_log_sums = statistics_head(log_sums, shape, sequence, head);
    store_forward<1>(output_rows, output_stride(shape), head_log_sums, warp_query, tokens, sums,
                     softmax, scale);
}
EXPORT_KERNEL(wgmma_forward)

// ---- Backward of the queries ----

// A block computes 128 queries against 64 keys at a time.
constexpr int QUERIES_KEYS = 64;

// Writes the query columns of dqkv. While the scores of a tile and the gradients of its
// probabilities are computed, the product with the keys before is, which have three tiles for this;
// values have two.
//
// Grid: (H, B, ceil(T / 128)). Block: 256. Dynamic shared memory: 73,728 bytes (D = 64) or 147,456.
KERNEL void __launch_bounds__(THREADS, 1)
wgmma_backward_queries(u16* __restrict__ dqkv, const u16* __restrict__ doutput,
                       const u16* __restrict__ qkv, const float* __restrict__ log_sums,
                       const float* __restrict__ delta, int tokens, int heads,
                       int key_value_heads, float scale) {
    DYNAMIC_SHARED(memory);
    constexpr int TILE = QUERIES_KEYS * D;
    u16* queries = reinterpret_cast<u16*>(memory);
    u16* gradients = queries + BLOCK_ROWS * D;
    u16* keys = gradients + BLOCK_ROWS * D;
    u16* values = keys + 3 * TILE;

    const Shape shape = {tokens, heads, key_value_heads};
    const int head = blockIdx.x;
    const int sequence = blockIdx.y;
    const int first_query = (gridDim.z - 1 - blockIdx.z) * BLOCK_ROWS;
    const int group_row = warpgroup_index() * WARPGROUP_ROWS;
    const int group_query = first_query + group_row;
    const int warp_query = first_query + warp_index() * 16;
    const int key_head = heads + head / (heads / key_value_heads);
    const int stride = qkv_stride(shape);
    const u16* query_rows = qkv_head(qkv, shape, sequence, head);
    const u16* gradient_rows = output_head(doutput, shape, sequence, head);
    const u16* key_rows = qkv_head(qkv, shape, sequence, key_head);
    const u16* value_rows = qkv_head(qkv, shape, sequence, key_head + key_value_heads);
    const int tiles = (min(tokens, first_query + BLOCK_ROWS) - 1) / QUERIES_KEYS + 1;
    const int own_tiles = (min(tokens, group_query + WARPGROUP_ROWS) - 1) / QUERIES_KEYS + 1;
    const auto statistics = load_statistics<1>(statistics_head(log_sums, shape, sequence, head),
                                               statistics_head(delta, shape, sequence, head),
                                               warp_query, tokens);

    const auto keys_of = [&](int tile) { return keys + tile % 3 * TILE; };
    const auto values_of = [&](int tile) { return values + tile % 2 * TILE; };
    const auto copy_tile = [&](int tile) {
        const int key = tile * QUERIES_KEYS;
        if (tile < tiles) {
            copy_rows<QUERIES_KEYS>(keys_of(tile), key_rows, stride, key, tokens);
            copy_rows<QUERIES_KEYS>(values_of(tile), value_rows, stride, key, tokens);
        }
        cp_async_commit();
    };

    copy_rows<BLOCK_ROWS>(queries, query_rows, stride, first_query, tokens);
    copy_rows<BLOCK_ROWS>(gradients, gradient_rows, output_stride(shape), first_query, tokens);
    copy_tile(0);
    wait_for_copies();
    copy_tile(1);

    const Operand<1, D> left_queries = load_operand<BLOCK_ROWS>(queries, group_row);
    const Operand<1, D> left_gradients = load_operand<BLOCK_ROWS>(gradients, group_row);
    Sums<1, D> sums = {};
    Sums<1, QUERIES_KEYS> scores = {};
    Sums<1, QUERIES_KEYS> products = {};
    const auto start_tile = [&](int tile) {
        wgmma_fence();
        start_transposed(scores, left_queries, keys_of(tile));
        start_transposed(products, left_gradients, values_of(tile));
    };
    const auto finish_tile = [&](int tile) {
        const int key = tile * QUERIES_KEYS;
        if (key + QUERIES_KEYS - 1 > warp_query) {
            mask<Rows::QUERIES>(scores, key - warp_query);
        }
        score_gradients(products, scores, statistics, scale * LOG2_E);
    };
    start_tile(0);
    wgmma_wait<0>(scores.at[0], left_queries.at[0], products.at[0], left_gradients.at[0]);
    finish_tile(0);
    Operand<1, QUERIES_KEYS> left = narrowed_operand(products);

    for (int tile = 0; tile < tiles; tile++) {
        wait_for_copies();  // And every warp is done with the tiles before.
        if (tile + 1 < own_tiles) {
            start_tile(tile + 1);
            start_added(sums, left, keys_of(tile));
            copy_tile(tile + 2);
            wgmma_wait<1>(scores.at[0], left_queries.at[0], products.at[0], left_gradients.at[0]);
            finish_tile(tile + 1);
            compute_before_wait(products);
            wgmma_wait<0>(sums.at[0], left.at[0]);
            left = narrowed_operand(products);
        } else {
            copy_tile(tile + 2);
            if (tile < own_tiles) {
                wgmma_fence();
                start_added(sums, left, keys_of(tile));
                wgmma_wait<0>(sums.at[0], left.at[0]);
            }
        }
    }
    u16* output_rows = qkv_head(dqkv, shape, sequence, head);
    store_rows<1>(output_rows, stride, warp_query, tokens, sums, scale);
}
EXPORT_KERNEL(wgmma_backward_queries)

// ---- Backward of keys and values ----

// A block computes 128 keys against 64 queries (D = 64) or 32 (D = 128) at a time.
constexpr int KEYS_QUERIES = 4096 / D;

// Writes the key and value columns of dqkv, summed over the query heads of the group and the
// queries from the key on, in this order. While the scores of a tile and the gradients of its
// probabilities are computed, the products with the tile before are: there are three tiles of
// queries and of gradients.
//
// Grid: (K, B, ceil(T / 128)). Block: 256. Dynamic shared memory: 82,944 bytes (D = 64) or 115,200.
KERNEL void __launch_bounds__(THREADS, 1)
wgmma_backward_keys(u16* __restrict__ dqkv, const u16* __restrict__ doutput,
                    const u16* __restrict__ qkv, const float* __restrict__ log_sums,
                    const float* __restrict__ delta, int tokens, int heads, int key_value_heads,
                    float scale) {
    DYNAMIC_SHARED(memory);
    constexpr int TILE = KEYS_QUERIES * D;
    constexpr int STATISTICS = 2 * KEYS_QUERIES;
    u16* keys = reinterpret_cast<u16*>(memory);
    u16* values = keys + BLOCK_ROWS * D;
    u16* queries = values + BLOCK_ROWS * D;
    u16* gradients = queries + 3 * TILE;
    // For each of two tiles: log sums in powers of two, then deltas.
    float* statistics = reinterpret_cast<float*>(gradients + 3 * TILE);

    const Shape shape = {tokens, heads, key_value_heads};
    const int group = blockIdx.x;
    const int sequence = blockIdx.y;
    // Early keys, which the most queries see, start first.
    const int first_key = blockIdx.z * BLOCK_ROWS;
    const int group_row = warpgroup_index() * WARPGROUP_ROWS;
    const int warp_key = first_key + warp_index() * 16;
    const int key_head = heads + group;
    const int value_head = key_head + key_value_heads;
    const int stride = qkv_stride(shape);
    const int group_heads = heads / key_value_heads;
    const int tiles = group_heads * ((tokens - first_key - 1) / KEYS_QUERIES + 1);

    const auto queries_of = [&](int tile) { return queries + tile % 3 * TILE; };
    const auto gradients_of = [&](int tile) { return gradients + tile % 3 * TILE; };
    const auto statistics_of = [&](int tile) { return statistics + tile % 2 * STATISTICS; };
    const auto copy_tile = [&](int tile, QueryTile from) {
        const u16* query_rows = qkv_head(qkv, shape, sequence, from.head);
        const u16* gradient_rows = output_head(doutput, shape, sequence, from.head);
        copy_rows<KEYS_QUERIES>(queries_of(tile), query_rows, stride, from.query, tokens);
        copy_rows<KEYS_QUERIES>(gradients_of(tile), gradient_rows, output_stride(shape),
                                from.query, tokens);
        cp_async_commit();
    };
    const auto load_own_statistic = [&](QueryTile from) {
        return load_statistic<KEYS_QUERIES>(log_sums, delta, shape, sequence, from);
    };
    const auto store_statistic = [&](int tile, float statistic) {
        if (threadIdx.x < STATISTICS) {
            statistics_of(tile)[threadIdx.x] = statistic;
        }
    };

    const u16* key_rows = qkv_head(qkv, shape, sequence, key_head);
    const u16* value_rows = qkv_head(qkv, shape, sequence, value_head);
    copy_rows<BLOCK_ROWS>(keys, key_rows, stride, first_key, tokens);
    copy_rows<BLOCK_ROWS>(values, value_rows, stride, first_key, tokens);
    QueryTile computed = {group * group_heads, first_key};
    QueryTile copied = computed;
    copy_tile(0, copied);
    store_statistic(0, load_own_statistic(copied));
    wait_for_copies();
    if (tiles > 1) {
        copied = tile_after<KEYS_QUERIES>(copied, first_key, tokens);
        copy_tile(1, copied);
        store_statistic(1, load_own_statistic(copied));
    }

    const u64 left_keys = tile_descriptor<BLOCK_ROWS>(keys, group_row);
    const u64 left_values = tile_descriptor<BLOCK_ROWS>(values, group_row);
    Sums<1, D> key_sums = {};
    Sums<1, D> value_sums = {};
    Sums<1, KEYS_QUERIES> scores = {};
    Sums<1, KEYS_QUERIES> products = {};
    const auto start_tile = [&](int tile) {
        wgmma_fence();
        start_transposed<BLOCK_ROWS>(scores, left_keys, queries_of(tile));
        start_transposed<BLOCK_ROWS>(products, left_values, gradients_of(tile));
    };
    const auto finish_tile = [&](int tile) {
        if (computed.query < warp_key + 16 - 1) {
            mask<Rows::KEYS>(scores, warp_key - computed.query);
        }
        const float* tile_statistics = statistics_of(tile);
        transposed_gradients(scores, products, tile_statistics, tile_statistics + KEYS_QUERIES,
                             scale * LOG2_E);
    };
    start_tile(0);
    wgmma_wait<0>(scores.at[0], products.at[0]);
    finish_tile(0);
    Operand<1, KEYS_QUERIES> left_scores = narrowed_operand(scores);
    Operand<1, KEYS_QUERIES> left_products = narrowed_operand(products);

    for (int tile = 0; tile < tiles; tile++) {
        wait_for_copies();  // And every warp is done with the tiles before.
        if (tile + 1 < tiles) {
            computed = tile_after<KEYS_QUERIES>(computed, first_key, tokens);
            start_tile(tile + 1);
            start_added(value_sums, left_scores, gradients_of(tile));
            start_added(key_sums, left_products, queries_of(tile));
            float statistic = 0.0f;
            if (tile + 2 < tiles) {
                copied = tile_after<KEYS_QUERIES>(copied, first_key, tokens);
                copy_tile(tile + 2, copied);
                statistic = load_own_statistic(copied);
            }
            wgmma_wait<2>(scores.at[0], products.at[0]);
            finish_tile(tile + 1);
            compute_before_wait(products);
            store_statistic(tile + 2, statistic);
            wgmma_wait<0>(value_sums.at[0], left_scores.at[0], key_sums.at[0],
                          left_products.at[0]);
            left_scores = narrowed_operand(scores);
            left_products = narrowed_operand(products);
        } else {
            wgmma_fence();
            start_added(value_sums, left_scores, gradients_of(tile));
            start_added(key_sums, left_products, queries_of(tile));
            wgmma_wait<0>(value_sums.at[0], left_scores.at[0], key_sums.at[0],
                          left_products.at[0]);
        }
    }
    u16* dkeys = qkv_head(dqkv, shape, sequence, key_head);
    u16* dvalues = qkv_head(dqkv, shape, sequence, value_head);
    store_rows<1>(dkeys, stride, warp_key, tokens, key_sums, scale);
    store_rows<1>(dvalues, stride, warp_key, tokens, value_sums, 1.0f);
}
EXPORT_KERNEL(wgmma_backward_keys)
