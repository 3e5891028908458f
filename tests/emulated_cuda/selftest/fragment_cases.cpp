// mma and ldmatrix against layouts of fragments that NVIDIA published: the numbers of CUTLASS 4.7.0
// (commit 7107b055), include/cute/atom/mma_traits_sm80.hpp, SM80_16x8x16_F32BF16BF16F32_TN, and
// include/cute/atom/copy_traits_sm75.hpp, SM75_U32x4_LDSM_N and SM75_U16x8_LDSM_T.
#include "cuda.h"
#include "fragments.h"
#include "harness.h"

constexpr int LANES = 32;

// To row + 16 column of a (16, 16), to column + 8 row of b (16, 8), to row + 16 column of c (16, 8).
static const Layout A = {{{4, 32}, {8, 1}}, {{2, 16}, {2, 8}, {2, 128}}};
static const Layout B = {{{4, 16}, {8, 1}}, {{2, 8}, {2, 64}}};
static const Layout C = {{{4, 32}, {8, 1}}, {{2, 16}, {2, 8}}};

// To a bit of the 128 that each lane's address gives: of the addresses, and of the results in bits.
static const Layout ROWS = {{{32, 128}}, {{128, 1}}};
static const Layout LOADED = {{{32, 32}}, {{32, 1}, {4, 1024}}};
static const Layout LOADED_TRANSPOSED = {{{4, 256}, {8, 16}}, {{16, 1}, {2, 128}, {4, 1024}}};

// The registers of all lanes with two bf16 each, the first in the lower half.
static std::vector<uint16_t> fragments(const std::vector<float>& matrix, const Layout& layout,
                                       int values) {
    std::vector<uint16_t> registers;
    for (int lane = 0; lane < LANES; lane++) {
        for (int value = 0; value < values; value++) {
            registers.push_back(bf16_bits(matrix[size_t(layout.at(lane, value))]));
        }
    }
    return registers;
}

PASSES(mma_has_the_published_fragments) {
    open_device();
    const CUfunction kernel = load_kernel(R"(
        KERNEL void test(float* d, const u32* a, const u32* b) {
            u32 own_a[4], own_b[2];
            float own_d[4];
            for (int i = 0; i < 4; i++) own_a[i] = a[threadIdx.x * 4 + i];
            for (int i = 0; i < 2; i++) own_b[i] = b[threadIdx.x * 2 + i];
            for (int i = 0; i < 4; i++) own_d[i] = d[threadIdx.x * 4 + i];
            mma16816(own_d, own_a, own_b);
            for (int i = 0; i < 4; i++) d[threadIdx.x * 4 + i] = own_d[i];
        }
        EXPORT_KERNEL(test))", "test");
    const std::vector<float> a = random_matrix(16 * 16, 1);
    const std::vector<float> b = random_matrix(16 * 8, 2);
    const std::vector<float> c = random_matrix(16 * 8, 3);
    std::vector<float> before;
    for (int i = 0; i < LANES * 4; i++) {
        before.push_back(c[size_t(C.at(i / 4, i % 4))]);
    }
    CUdeviceptr d_registers = upload(before);
    CUdeviceptr a_registers = upload(fragments(a, A, 8));
    CUdeviceptr b_registers = upload(fragments(b, B, 4));
    CHECK_EQUAL(launch(kernel, {1, LANES}, nullptr, {&d_registers, &a_registers, &b_registers}), 0);
    const std::vector<float> found = download<float>(d_registers, LANES * 4);
    for (int i = 0; i < LANES * 4; i++) {
        const int at = C.at(i / 4, i % 4);
        const int row = at % 16;
        const int column = at / 16;
        float sum = c[size_t(at)];
        for (int k = 0; k < 16; k++) {
            sum += a[size_t(row + 16 * k)] * b[size_t(column + 8 * k)];
        }
        CHECK_EQUAL(found[size_t(i)], sum);
    }
}

static int bit_at(const std::vector<uint32_t>& words, int bit) {
    return words[size_t(bit / 32)] >> bit % 32 & 1;
}

// Lanes give the addresses of rows that lie in another order.
static void check_ldmatrix(const char* instruction, const Layout& layout) {
    open_device();
    const CUfunction kernel = load_kernel(
        std::string("#define LOAD ") + instruction + R"(
        KERNEL void test(u32* loaded, const u32* rows) {
            __shared__ __align__(16) u32 shared[32][4];
            const int place = threadIdx.x * 5 % 32;
            for (int i = 0; i < 4; i++) shared[place][i] = rows[threadIdx.x * 4 + i];
            __syncwarp();
            u32 own[4];
            LOAD(own, shared[place]);
            for (int i = 0; i < 4; i++) loaded[threadIdx.x * 4 + i] = own[i];
        }
        EXPORT_KERNEL(test))", "test");
    std::mt19937 random(1);
    std::vector<uint32_t> rows(LANES * 4);
    for (uint32_t& word : rows) {
        word = uint32_t(random());
    }
    std::vector<int> bits(LANES * 128);
    for (int i = 0; i < LANES * 128; i++) {
        bits[size_t(ROWS.at(i / 128, i % 128))] = bit_at(rows, i);
    }
    CUdeviceptr rows_address = upload(rows);
    CUdeviceptr loaded_address = allocate(LANES * 16);
    CHECK_EQUAL(launch(kernel, {1, LANES}, nullptr, {&loaded_address, &rows_address}), 0);
    const std::vector<uint32_t> loaded = download<uint32_t>(loaded_address, LANES * 4);
    for (int i = 0; i < LANES * 128; i++) {
        CHECK_EQUAL(bit_at(loaded, i), bits[size_t(layout.at(i / 128, i % 128))]);
    }
}

PASSES(ldmatrix_has_the_published_fragments) { check_ldmatrix("ldmatrix_x4", LOADED); }

PASSES(ldmatrix_trans_has_the_published_fragments) {
    check_ldmatrix("ldmatrix_x4_trans", LOADED_TRANSPOSED);
}
