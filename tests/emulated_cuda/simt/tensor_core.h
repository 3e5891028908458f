// mma and ldmatrix: the last lane to arrive does the work of its warp. Fragments are laid out as
// the tables of the PTX manual say: with g = lane / 4 and t = 2 (lane % 4), a lane has of
//   a (16, 16): rows g and g + 8, columns t, t + 1, t + 8, t + 9
//   b (16, 8):  rows t, t + 1, t + 8, t + 9, column g
//   d (16, 8):  rows g and g + 8, columns t and t + 1
#pragma once

#include "async_copy.h"
#include "engine.h"
#include "math.h"

namespace simt {

struct Mma {
    float* d;
    const u32* a;
    const u32* b;
};

struct MmaTiles {
    float a[16][16];
    float b[16][8];
    float d[16][8];
};

DEV void gather_fragments(MmaTiles& tiles, Mma** lanes) {
    for (int lane = 0; lane < LANES; lane++) {
        const int g = lane / 4;
        const int t = lane % 4 * 2;
        for (int i = 0; i < 4; i++) {
            const int row = g + i % 2 * 8;
            const int column = t + i / 2 * 8;
            tiles.a[row][column] = bf16_lo(lanes[lane]->a[i]);
            tiles.a[row][column + 1] = bf16_hi(lanes[lane]->a[i]);
            tiles.d[g + i / 2 * 8][t + i % 2] = lanes[lane]->d[i];
        }
        for (int i = 0; i < 2; i++) {
            tiles.b[t + i * 8][g] = bf16_lo(lanes[lane]->b[i]);
            tiles.b[t + i * 8 + 1][g] = bf16_hi(lanes[lane]->b[i]);
        }
    }
}

DEV void multiply(MmaTiles& tiles) {
    for (int row = 0; row < 16; row++) {
        for (int k = 0; k < 16; k++) {
            for (int column = 0; column < 8; column++) {
                tiles.d[row][column] += tiles.a[row][k] * tiles.b[k][column];
            }
        }
    }
}

DEV void scatter_result(const MmaTiles& tiles, Mma** lanes) {
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < 4; i++) {
            lanes[lane]->d[i] = tiles.d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
        }
    }
}

struct MatrixRow {
    u32* result;
    const u16* row;
};

// The element at a row and column of one of the four matrices.
template <bool transposed>
DEV u32 matrix_element(MatrixRow** lanes, int matrix, int row, int column) {
    if (transposed) {
        return lanes[matrix * 8 + column]->row[row];
    }
    return lanes[matrix * 8 + row]->row[column];
}

template <bool transposed>
DEV void load_matrices(u32* result, const void* row, const Place& place) {
    refuse_elementwise(place.operation);
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
        die("an address of ldmatrix is not a multiple of 16 bytes");
    }
    check_shared(row, "ldmatrix from an address outside of shared memory");
    MatrixRow own = {result, static_cast<const u16*>(row)};
    rendezvous(0xffffffffu, place, own, [](MatrixRow** lanes) {
        for (int lane = 0; lane < LANES; lane++) {
            const int g = lane / 4;
            const int t = lane % 4 * 2;
            for (int matrix = 0; matrix < 4; matrix++) {
                const u32 lo = matrix_element<transposed>(lanes, matrix, g, t);
                const u32 hi = matrix_element<transposed>(lanes, matrix, g, t + 1);
                lanes[lane]->result[matrix] = lo | hi << 16;
            }
        }
    });
}

}  // namespace simt

DEV void mma16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], SIMT_HERE) {
    simt::Mma own = {d, a, b};
    const simt::Place place = {"mma16816", file, line};
    simt::rendezvous(0xffffffffu, place, own, [](simt::Mma** lanes) {
        simt::MmaTiles tiles;
        simt::gather_fragments(tiles, lanes);
        simt::multiply(tiles);
        simt::scatter_result(tiles, lanes);
    });
}

DEV void ldmatrix_x4(u32 (&r)[4], const void* row, SIMT_HERE) {
    simt::load_matrices<false>(r, row, {"ldmatrix_x4", file, line});
}

DEV void ldmatrix_x4_trans(u32 (&r)[4], const void* row, SIMT_HERE) {
    simt::load_matrices<true>(r, row, {"ldmatrix_x4_trans", file, line});
}
