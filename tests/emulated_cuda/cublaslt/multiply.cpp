// A blocked product: operands are widened to f32 in panels, and a kernel computes a tile of 32 rows
// and 6 columns in vector registers over the whole of k.
#include "multiply.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

namespace emulated {

// The rows and columns of a tile, and the columns of B that are packed at once.
constexpr size_t TILE_ROWS = 32;
constexpr size_t TILE_COLS = 6;
constexpr size_t BLOCK_COLS = 32 * TILE_COLS;
constexpr size_t VECTOR = 16;

typedef float FloatVector __attribute__((vector_size(VECTOR * sizeof(float)), aligned(4)));

static float widen(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static float widen(float value) { return value; }

static void narrow(float value, float& to) { to = value; }

// To the nearest, ties to even.
static void narrow(float value, uint16_t& to) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    to = nan ? uint16_t(0x7fff) : uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// A view of an operand: element (row, k) of op(A), or (column, k) of op(B).
template <class T>
struct Side {
    const T* elements;
    size_t stride;
    size_t k_stride;

    float at(size_t index, size_t k) const {
        return widen(elements[index * stride + k * k_stride]);
    }
};

// The panel has `width` values for each k, the ones past `count` being zero.
template <class T>
static void pack(float* panel, const Side<T>& side, size_t first, size_t count, size_t width,
                 size_t k_count) {
    if (side.k_stride == 1) {
        for (size_t i = 0; i < count; i++) {
            for (size_t k = 0; k < k_count; k++) {
                panel[k * width + i] = side.at(first + i, k);
            }
        }
    } else {
        for (size_t k = 0; k < k_count; k++) {
            for (size_t i = 0; i < count; i++) {
                panel[k * width + i] = side.at(first + i, k);
            }
        }
    }
    for (size_t k = 0; k < k_count && count < width; k++) {
        std::fill(panel + k * width + count, panel + (k + 1) * width, 0.0f);
    }
}

struct Tile {
    float at[TILE_COLS][TILE_ROWS];
};

using Sums = FloatVector[TILE_COLS][2];

// Inlined, so that the sums stay in registers.
[[gnu::always_inline]] static inline void add_products(Sums& sums, const float* a, const float* b,
                                                       size_t k_first, size_t k_end) {
    for (size_t k = k_first; k < k_end; k++) {
        const FloatVector low = *reinterpret_cast<const FloatVector*>(a + k * TILE_ROWS);
        const FloatVector high = *reinterpret_cast<const FloatVector*>(a + k * TILE_ROWS + VECTOR);
#pragma GCC unroll 6
        for (size_t column = 0; column < TILE_COLS; column++) {
            const float factor = b[k * TILE_COLS + column];
            sums[column][0] += low * factor;
            sums[column][1] += high * factor;
        }
    }
}

static void multiply_panels(Tile& tile, const float* a, const float* b, size_t k_count,
                            size_t first_k) {
    Sums sums = {};
    add_products(sums, a, b, first_k, k_count);
    add_products(sums, a, b, 0, first_k);
    memcpy(&tile, sums, sizeof tile);
}

constexpr float GELU_SCALE = 0.7978845608028654f;
constexpr float GELU_CUBIC = 0.044715f;

static float gelu(float x) {
    return 0.5f * x * (1.0f + tanhf(GELU_SCALE * (x + GELU_CUBIC * x * x * x)));
}

static float gelu_derivative(float x) {
    const float t = tanhf(GELU_SCALE * (x + GELU_CUBIC * x * x * x));
    const float inner = GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * x * x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
}

// The values of D from the sums: bias, GELU, what is kept for GELU's derivative, and that.
template <class Out>
static float apply_epilogue(const Problem& problem, float value, size_t row, size_t column) {
    const Descriptor& descriptor = problem.descriptor;
    Out* aux = static_cast<Out*>(descriptor.aux) + column * size_t(descriptor.aux_ld) + row;
    if (problem.has_bias()) {
        value += widen(static_cast<const Out*>(descriptor.bias)[row]);
    }
    if (problem.writes_aux()) {
        narrow(value, *aux);
    }
    if (problem.reads_aux()) {
        value *= gelu_derivative(widen(*aux));
    }
    return problem.has_gelu() ? gelu(value) : value;
}

template <class Out>
static void store_tile(const Problem& problem, const Operands& operands, const Tile& tile,
                       size_t first_row, size_t first_column) {
    const size_t rows = std::min(TILE_ROWS, problem.m() - first_row);
    const size_t columns = std::min(TILE_COLS, problem.n() - first_column);
    const bool plain = problem.descriptor.epilogue == EPILOGUE_DEFAULT;
    for (size_t j = 0; j < columns; j++) {
        const size_t column = first_column + j;
        const Out* c = static_cast<const Out*>(operands.c) + column * size_t(problem.c.ld);
        Out* d = static_cast<Out*>(operands.d) + column * size_t(problem.d.ld);
        for (size_t i = 0; i < rows; i++) {
            const size_t row = first_row + i;
            float value = operands.alpha * tile.at[j][i];
            if (operands.beta != 0.0f) {
                value += operands.beta * widen(c[row]);
            }
            narrow(plain ? value : apply_epilogue<Out>(problem, value, row, column), d[row]);
        }
    }
}

static Side<uint16_t> side(const uint16_t* elements, const Layout& layout, bool k_is_row) {
    const size_t ld = size_t(layout.ld);
    return k_is_row ? Side<uint16_t>{elements, ld, 1} : Side<uint16_t>{elements, 1, ld};
}

static Side<float> side(const float* elements, const Layout& layout, bool k_is_row) {
    const size_t ld = size_t(layout.ld);
    return k_is_row ? Side<float>{elements, ld, 1} : Side<float>{elements, 1, ld};
}

template <class In, class Out>
static void multiply_typed(const Problem& problem, const Operands& operands, size_t first_k) {
    const bool a_k_is_row = problem.descriptor.transa != CUBLAS_OP_N;
    const bool b_k_is_row = problem.descriptor.transb == CUBLAS_OP_N;
    const Side<In> a = side(static_cast<const In*>(operands.a), problem.a, a_k_is_row);
    const Side<In> b = side(static_cast<const In*>(operands.b), problem.b, b_k_is_row);
    const size_t k = problem.k();
    const std::unique_ptr<float[]> a_panel(new float[TILE_ROWS * k]);
    const std::unique_ptr<float[]> b_panels(new float[BLOCK_COLS * k]);
    for (size_t block = 0; block < problem.n(); block += BLOCK_COLS) {
        const size_t block_end = std::min(block + BLOCK_COLS, problem.n());
        for (size_t column = block; column < block_end; column += TILE_COLS) {
            const size_t count = std::min(TILE_COLS, problem.n() - column);
            pack(&b_panels[(column - block) * k], b, column, count, TILE_COLS, k);
        }
        for (size_t row = 0; row < problem.m(); row += TILE_ROWS) {
            const size_t count = std::min(TILE_ROWS, problem.m() - row);
            pack(a_panel.get(), a, row, count, TILE_ROWS, k);
            for (size_t column = block; column < block_end; column += TILE_COLS) {
                Tile tile;
                multiply_panels(tile, a_panel.get(), &b_panels[(column - block) * k], k, first_k);
                store_tile<Out>(problem, operands, tile, row, column);
            }
        }
    }
}

void multiply(const Problem& problem, const Operands& operands, size_t first_k) {
    if (problem.a.type == CUDA_R_32F) {
        multiply_typed<float, float>(problem, operands, first_k);
    } else if (problem.d.type == CUDA_R_32F) {
        multiply_typed<uint16_t, float>(problem, operands, first_k);
    } else {
        multiply_typed<uint16_t, uint16_t>(problem, operands, first_k);
    }
}

}  // namespace emulated
