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

// Waits for this thread's copies, for the block's threads, and for their writes to be seen by wgmma.
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
    Operand<1, D> operand;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        ldmatrix_x4(operand.at[0][k], tile + tile_offset<ROWS>(row, k * 16 + lane_index() / 16 * 8));
    }
    return operand;
}

// Starts `left` times the N rows of `right` transposed.
template <int N>
DEV void start_transposed(Sums<1, N>& sums, const Operand<1, D>& left, u64 right) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        wgmma<Major::K>(sums.at[0], left.at[0][k], at_column<N>(right, k * 16), k > 0);
    }
    wgmma_commit();
}

// Starts adding the product of `left` and the N rows of `right`.
template <int N>
DEV void start_added(Sums<1, D>& sums, const Operand<1, N>& left, u64 right) {
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        wgmma<Major::MN>(sums.at[0], left.at[0][k], at_row(right, k * 16), 1);
    }
    wgmma_commit();
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
    const u16* value_rows = qkv_head(qkv, shape, sequence, key_head + key_value_heads);
    // Tiles of keys that the block's queries see, and those that this warpgroup's see.
    const int tiles = (min(tokens, first_query + BLOCK_ROWS) - 1) / FORWARD_KEYS + 1;
    const int own_tiles = (min(tokens, group_query + WARPGROUP_ROWS) - 1) / FORWARD_KEYS + 1;
    const float scale_log2 = scale * LOG2_E;

    const auto copy_keys = [&](int tile) {
        copy_rows<FORWARD_KEYS>(keys + tile % 2 * TILE, key_rows, stride, tile * FORWARD_KEYS,
                                tokens);
    };
    const auto copy_values = [&](int tile) {
        copy_rows<FORWARD_KEYS>(values + tile % 2 * TILE, value_rows, stride,
                                tile * FORWARD_KEYS, tokens);
    };
    const auto keys_of = [&](int tile) {
        return tile_descriptor<FORWARD_KEYS>(keys + tile % 2 * TILE);
    };
    const auto values_of = [&](int tile) {
        return tile_descriptor<FORWARD_KEYS>(values + tile % 2 * TILE);
    };

    copy_rows<BLOCK_ROWS>(queries, query_rows, stride, first_query, tokens);
    copy_keys(0);
    cp_async_commit();
    wait_for_copies();
    if (tiles > 1) {
        copy_keys(1);
    }
    copy_values(0);
    cp_async_commit();

    const Operand<1, D> left = load_operand<BLOCK_ROWS>(queries, group_row);
    Softmax<1> softmax = empty_softmax<1>();
    Sums<1, D> sums = {};
    Sums<1, FORWARD_KEYS> scores = {};
    float corrections[1][2];
    const auto exponentiate_tile = [&](int tile) {
        const int key = tile * FORWARD_KEYS;
        if (key + FORWARD_KEYS - 1 > warp_query) {
            mask(scores, key - warp_query);
        }
        exponentiate(scores, softmax, corrections, scale_log2);
    };
    wgmma_fence();
    start_transposed(scores, left, keys_of(0));
    wgmma_wait<0>();
    exponentiate_tile(0);
    Operand<1, FORWARD_KEYS> probabilities = narrowed_operand(scores);

    for (int tile = 0; tile < tiles; tile++) {
        wait_for_copies();  // And every warp is done with the tiles before.
        if (tile + 2 < tiles) {
            copy_keys(tile + 2);
        }
        if (tile + 1 < tiles) {
            copy_values(tile + 1);
        }
        cp_async_commit();
        if (tile + 1 < own_tiles) {
            wgmma_fence();
            start_transposed(scores, left, keys_of(tile + 1));
            start_added(sums, probabilities, values_of(tile));
            wgmma_wait<1>();
            exponentiate_tile(tile + 1);
            compute_before_wait(softmax.sum[0][0] + softmax.sum[0][1]);
            wgmma_wait<0>();
            rescale(sums, corrections);
            probabilities = narrowed_operand(scores);
        } else if (tile < own_tiles) {
            wgmma_fence();
            start_added(sums, probabilities, values_of(tile));
            wgmma_wait<0>();
        }
    }

    u16* output_rows = output_head(output, shape, sequence, head);
    float* head_log_sums = statistics_head(log_sums, shape, sequence, head);
    store_forward<1>(output_rows, output_stride(shape), head_log_sums, warp_query, tokens, sums,
                     softmax, scale);
}
EXPORT_KERNEL(wgmma_forward)
