// Sums over rows in two steps: parts of the rows, then the parts in order. The number of parts is
// that of the grid, so the bits do not depend on scheduling.
#include "common.cuh"

constexpr int THREADS = 256;
// Columns of a block, and its threads as a rectangle of rows and packs.
constexpr int COLUMNS = 64;
constexpr int PACKS = COLUMNS / PACK;
constexpr int LANES = THREADS / PACKS;

// Writes partials (parts, width): row p has the sums of x (rows, width) over the p-th part of rows.
//
// Grid: (ceil(width / 64), parts). Block: 256.
KERNEL void __launch_bounds__(THREADS)
column_partials(float* __restrict__ partials, const Element* __restrict__ x, int rows, int width) {
    __shared__ __align__(16) float sums[LANES][COLUMNS];
    const int own = threadIdx.x % PACKS * PACK;
    const int lane = threadIdx.x / PACKS;
    const int first_column = blockIdx.x * COLUMNS;
    const int end = part_start(rows, blockIdx.y + 1, gridDim.y);
    Pack sum = zeros<PACK>();
    if (first_column + own < width) {
        const Element* from = x + first_column + own;
#pragma unroll 4
        for (int row = part_start(rows, blockIdx.y, gridDim.y) + lane; row < end; row += LANES) {
            const Pack addend = load(from + i64(row) * width);
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                sum.at[i] += addend.at[i];
            }
        }
    }
    store_floats(&sums[lane][own], sum);
    __syncthreads();
    const int column = first_column + threadIdx.x;
    if (threadIdx.x < COLUMNS && column < width) {
        float total = 0.0f;
        for (int l = 0; l < LANES; l++) {
            total += sums[l][threadIdx.x];
        }
        partials[i64(blockIdx.y) * width + column] = total;
    }
}
EXPORT_KERNEL(column_partials)

constexpr int SUM_WARPS = 16;

// Writes to sums (width), or adds to them, the rows of partials (parts, width). A warp adds up
// every 16th of them in 32 columns; then these 16 sums are added in their order.
//
// Grid: ceil(width / 32). Block: 512.
KERNEL void __launch_bounds__(SUM_WARPS* WARP)
column_sums(float* __restrict__ sums, const float* __restrict__ partials, int parts, int width,
            int accumulate) {
    __shared__ float warps[SUM_WARPS][WARP];
    const int column = blockIdx.x * WARP + lane_index();
    const bool valid = column < width;
    float own = 0.0f;
    if (valid) {
#pragma unroll 4
        for (int part = warp_index(); part < parts; part += SUM_WARPS) {
            own += partials[i64(part) * width + column];
        }
    }
    warps[warp_index()][lane_index()] = own;
    __syncthreads();
    if (warp_index() == 0 && valid) {
        float sum = 0.0f;
#pragma unroll
        for (int warp = 0; warp < SUM_WARPS; warp++) {
            sum += warps[warp][lane_index()];
        }
        sums[column] = accumulate ? sums[column] + sum : sum;
    }
}
EXPORT_KERNEL(column_sums)
