// Rows of the tables copied and added forward, rows of the gradient summed backward.
#include "common.cuh"

// Writes y (rows, width), for row r: token_table[tokens[r]] + position_table[r % sequence_tokens].
// Without a table of positions the token's row is copied.
//
// Grid: rows. Block: 128.
KERNEL void __launch_bounds__(128)
embedding_forward(Element* __restrict__ y, const u32* __restrict__ tokens,
                  const Element* __restrict__ token_table,
                  const Element* __restrict__ position_table, int rows, int sequence_tokens,
                  int width) {
    const int row = blockIdx.x;
    if (row >= rows) {
        return;
    }
    const Element* token = token_table + i64(tokens[row]) * width;
    Element* output = y + i64(row) * width;
    if (position_table == nullptr) {
        for (int column = threadIdx.x * PACK; column < width; column += blockDim.x * PACK) {
            store(output + column, load(token + column));
        }
        return;
    }
    const Element* position = position_table + i64(row % sequence_tokens) * width;
    for (int column = threadIdx.x * PACK; column < width; column += blockDim.x * PACK) {
        Pack sum = load(token + column);
        const Pack addend = load(position + column);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            sum.at[i] += addend.at[i];
        }
        store(output + column, sum);
    }
}
EXPORT_KERNEL_ELEMENTWISE(embedding_forward)

constexpr int TOKEN_WARPS = 8;
// Columns that a warp sums at once.
constexpr int CHUNK = WARP * PACK;

// The sum of one pack of columns over `count` rows of dx, in the order that `rows` lists them.
DEV Pack sum_of_rows(const Element* dx, const u32* rows, int count, int width) {
    Pack sum = zeros<PACK>();
#pragma unroll 4
    for (int i = 0; i < count; i++) {
        const Pack addend = load(dx + i64(rows[i]) * width);
#pragma unroll
        for (int k = 0; k < PACK; k++) {
            sum.at[k] += addend.at[k];
        }
    }
    return sum;
}

// Adds to row ids[g] of dtable (V, width) the rows of dx that `order` lists from starts[g] to
// starts[g + 1], g being the first index of the block. Eight warps sum a contiguous eighth of the
// list each, and their sums are added in order: a token of thousands of rows is not one long chain.
//
// Grid: (distinct tokens, any number: chunks of columns are dealt out along y). Block: 256.
KERNEL void __launch_bounds__(TOKEN_WARPS* WARP)
embedding_backward_tokens(float* __restrict__ dtable, const Element* __restrict__ dx,
                          const u32* __restrict__ order, const u32* __restrict__ starts,
                          const u32* __restrict__ ids, int width) {
    __shared__ __align__(16) float sums[TOKEN_WARPS][CHUNK];
    const int group = blockIdx.x;
    const u32* rows = order + starts[group];
    const int count = int(starts[group + 1] - starts[group]);
    const int first = part_start(count, warp_index(), TOKEN_WARPS);
    const int end = part_start(count, warp_index() + 1, TOKEN_WARPS);
    float* output = dtable + i64(ids[group]) * width;
    for (int chunk = blockIdx.y * CHUNK; chunk < width; chunk += gridDim.y * CHUNK) {
        const int column = lane_index() * PACK;
        if (chunk + column < width) {
            const Pack sum = sum_of_rows(dx + chunk + column, rows + first, end - first, width);
            store_floats(&sums[warp_index()][column], sum);
        }
        __syncthreads();
        const int own = threadIdx.x;
        if (own < CHUNK && chunk + own < width) {
            float sum = sums[0][own];
#pragma unroll
            for (int warp = 1; warp < TOKEN_WARPS; warp++) {
                sum += sums[warp][own];
            }
            output[chunk + own] += sum;
        }
        __syncthreads();
    }
}
EXPORT_KERNEL(embedding_backward_tokens)

// Adds to row t of dtable the rows of dx at position t of every sequence, t being the index of the
// block.
//
// Grid: sequence_tokens. Block: 128.
KERNEL void __launch_bounds__(128)
embedding_backward_positions(float* __restrict__ dtable, const Element* __restrict__ dx,
                             int sequences, int sequence_tokens, int width) {
    const int position = blockIdx.x;
    const i64 sequence_elements = i64(sequence_tokens) * width;
    for (int column = threadIdx.x * PACK; column < width; column += blockDim.x * PACK) {
        const i64 start = i64(position) * width + column;
        Pack sum = load_floats<PACK>(dtable + start);
#pragma unroll 4
        for (int sequence = 0; sequence < sequences; sequence++) {
            const Pack addend = load(dx + sequence * sequence_elements + start);
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                sum.at[i] += addend.at[i];
            }
        }
        store_floats(dtable + start, sum);
    }
}
EXPORT_KERNEL_ELEMENTWISE(embedding_backward_positions)
