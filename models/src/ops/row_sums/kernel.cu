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

// Writes to sums (width), or adds to them, the rows of partials (parts, width) in their order.
//
// Grid: ceil(width / 128). Block: 128.
KERNEL void __launch_bounds__(128)
column_sums(float* __restrict__ sums, const float* __restrict__ partials, int parts, int width,
            int accumulate) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= width) {
        return;
    }
    float sum = 0.0f;
#pragma unroll 8
    for (int part = 0; part < parts; part++) {
        sum += partials[i64(part) * width + column];
    }
    sums[column] = accumulate ? sums[column] + sum : sum;
}
EXPORT_KERNEL_ELEMENTWISE(column_sums)
