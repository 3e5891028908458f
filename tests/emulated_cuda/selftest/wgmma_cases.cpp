// wgmma against what NVIDIA published: the numbers of CUTLASS, include/cute/atom/
// mma_traits_sm90_gmma.hpp (commit 082a375c: ALayout_64x16, CLayout_64xN, Layout_K_SW128_Atom_Bits,
// Layout_MN_SW128_Atom_Bits and the canonical layouts above make_gmma_desc) and include/cute/arch/
// mma_sm90_desc.hpp (commit 19e8990d: GmmaDescriptor). Then what it must not be used without.
#include "cuda.h"
#include "fragments.h"
#include "harness.h"

constexpr int THREADS = 128;
constexpr int M = 64;
constexpr int K = 16;

// To row + 64 column of a (64, 16), and of c (64, N), whose last mode has N / 8.
static const Layout A = {{{4, 128}, {8, 1}, {4, 16}}, {{2, 64}, {2, 8}, {2, 512}}};
static const Layout C = {{{4, 128}, {8, 1}, {4, 16}}, {{2, 64}, {2, 8}, {16, 512}}};

// Swizzle<3, 4, 3>: of a byte's address, three bits from bit 4 on change by the three bits that are
// three above them.
static int swizzled(int address) { return address ^ (address >> 7 & 7) << 4; }

// A matrix in shared memory in units of bytes, by Layout_K_SW128_Atom and Layout_MN_SW128_Atom: of
// 8 x 64 and 64 x 8 elements. Atoms are `stride` behind each other along M or N in one that runs
// along K, and along K in the other, whose atoms along M or N are `leading` behind each other.
struct Tile {
    bool runs_along_k;
    int start;
    int leading;
    int stride;

    int at(int row, int k) const {
        const int byte = runs_along_k ? row / 8 * stride + row % 8 * 128 + k * 2
                                      : row / 64 * leading + row % 64 * 2 + k / 8 * stride +
                                            k % 8 * 128;
        return swizzled(start + byte);
    }

    // GmmaDescriptor: bits 0 to 13, 16 to 29 and 32 to 45, all without their lowest four bits, and
    // LayoutType::B128 = 1 in bits 62 and 63.
    uint64_t descriptor() const {
        return uint64_t(start >> 4) | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32 |
               uint64_t(1) << 62;
    }
};

static const char* const KERNEL_TEXT = R"(
    KERNEL void test(float* d, const u32* a, const u16* image, u64* descriptors, int accumulate) {
        DYNAMIC_SHARED(raw);
        for (int i = threadIdx.x * 8; i < IMAGE_BYTES / 2; i += 8 * 128) {
            cp_async16(raw + i * 2, image + i, true);
        }
        cp_async_commit();
        cp_async_wait<0>();
        FENCE_PROXY
        __syncthreads();
        u32 own_a[1][4];
        float own_d[N / 8][4];
        for (int i = 0; i < 4; i++) own_a[0][i] = a[threadIdx.x * 4 + i];
        for (int i = 0; i < N / 2; i++) own_d[i / 4][i % 4] = d[threadIdx.x * (N / 2) + i];
        FENCE
        #if LEFT_IN_REGISTERS
        wgmma<RIGHT>(own_d, own_a[0], descriptors[1], accumulate);
        #else
        wgmma<RIGHT>(own_d, descriptors[0], descriptors[1], accumulate);
        #endif
        wgmma_commit();
        WAIT
        for (int i = 0; i < N / 2; i++) d[threadIdx.x * (N / 2) + i] = own_d[i / 4][i % 4];
        if (threadIdx.x == 0) descriptors[2] = matrix_descriptor(raw + START, LEADING, STRIDE);
    }
    EXPORT_KERNEL(test))";

struct Product {
    int columns;
    bool left_in_registers;
    bool right_runs_along_k;
    bool accumulates;
    const char* fence_proxy = "fence_proxy_async();";
    const char* fence = "wgmma_fence();";
    const char* wait = "wgmma_wait<0>(own_d, own_a);";
};

// A tile of 64 rows for the left operand, and one of 128 rows or columns behind it.
constexpr int LEFT_BYTES = 8192;
constexpr int IMAGE_BYTES = LEFT_BYTES + 32768;

static std::string source(const Product& product, const Tile& right) {
    std::string text;
    const auto define = [&](const char* name, const std::string& value) {
        text += std::string("#define ") + name + " " + value + "\n";
    };
    define("N", std::to_string(product.columns));
    define("IMAGE_BYTES", std::to_string(IMAGE_BYTES));
    define("LEFT_IN_REGISTERS", product.left_in_registers ? "1" : "0");
    define("RIGHT", product.right_runs_along_k ? "Major::K" : "Major::MN");
    define("FENCE_PROXY", product.fence_proxy);
    define("FENCE", product.fence);
    define("WAIT", product.wait);
    define("START", std::to_string(right.start));
    define("LEADING", std::to_string(right.leading));
    define("STRIDE", std::to_string(right.stride));
    return text + KERNEL_TEXT;
}

static std::vector<uint16_t> left_registers(const std::vector<float>& a) {
    std::vector<uint16_t> registers;
    for (int i = 0; i < THREADS * 8; i++) {
        registers.push_back(bf16_bits(a[size_t(A.at(i / 8, i % 8))]));
    }
    return registers;
}

static void place(std::vector<uint16_t>& image, const Tile& tile, const std::vector<float>& matrix,
                  int rows) {
    for (int row = 0; row < rows; row++) {
        for (int k = 0; k < K; k++) {
            image[size_t(tile.at(row, k) / 2)] = bf16_bits(matrix[size_t(row + rows * k)]);
        }
    }
}

// Checks every sum of a product. Tiles are read from their second 16 elements along K on.
static void check(const Product& product) {
    open_device();
    const int n = product.columns;
    const Tile left = {true, 2 * K, 16, 1024};
    // Along N, atoms of 64 columns have 32 elements of K.
    const int start = LEFT_BYTES + (product.right_runs_along_k ? 2 * K : 2 * 1024);
    const Tile right = {product.right_runs_along_k, start, 4 * 1024, 1024};
    const std::vector<float> a = random_matrix(M * K, 1);
    const std::vector<float> b = random_matrix(size_t(n * K), 2);
    const std::vector<float> c = random_matrix(size_t(M * n), 3);
    std::vector<uint16_t> image(IMAGE_BYTES / 2);
    place(image, left, a, M);
    place(image, right, b, n);
    std::vector<float> before;
    for (int i = 0; i < THREADS * n / 2; i++) {
        before.push_back(c[size_t(C.at(i / (n / 2), i % (n / 2)))]);
    }
    const CUfunction kernel = load_kernel(source(product, right), "test");
    CUdeviceptr d_registers = upload(before);
    CUdeviceptr a_registers = upload(left_registers(a));
    CUdeviceptr image_address = upload(image);
    const std::vector<uint64_t> both = {left.descriptor(), right.descriptor(), 0};
    CUdeviceptr descriptors = upload(both);
    int accumulate = product.accumulates;
    const Grid grid = {1, THREADS, IMAGE_BYTES};
    CHECK_EQUAL(launch(kernel, grid, nullptr,
                       {&d_registers, &a_registers, &image_address, &descriptors, &accumulate}),
                0);
    const std::vector<float> found = download<float>(d_registers, before.size());
    for (size_t i = 0; i < before.size(); i++) {
        const int at = C.at(int(i) / (n / 2), int(i) % (n / 2));
        const int row = at % M;
        const int column = at / M;
        float sum = product.accumulates ? c[size_t(at)] : 0.0f;
        for (int k = 0; k < K; k++) {
            sum += a[size_t(row + M * k)] * b[size_t(column + n * k)];
        }
        CHECK(found[i] == sum);
    }
    CHECK(download<uint64_t>(descriptors, 3)[2] == right.descriptor());
}

PASSES(wgmma_has_the_published_fragments_and_tiles) {
    for (const int columns : {32, 64, 128}) {
        for (const bool left_in_registers : {false, true}) {
            for (const bool right_runs_along_k : {false, true}) {
                check({columns, left_in_registers, right_runs_along_k, false});
                check({columns, left_in_registers, right_runs_along_k, true});
            }
        }
    }
}

static Product without() { return {64, true, true, true}; }

ABORTS(wgmma_of_a_copy_without_a_fence, "without a fence.proxy.async") {
    Product product = without();
    product.fence_proxy = "";
    check(product);
}

ABORTS(wgmma_of_registers_without_a_fence, "wgmma without a wgmma.fence") {
    Product product = without();
    product.fence = "";
    check(product);
}

ABORTS(wgmma_that_is_not_waited_for, "a wgmma that it has not waited for") {
    Product product = without();
    product.wait = "wgmma_wait<1>();";
    check(product);
}

ABORTS(wgmma_by_a_part_of_a_warpgroup, "divergent warpgroup") {
    Product product = without();
    product.fence = "wgmma_fence(); if (threadIdx.x < 32)";
    product.wait = "if (threadIdx.x < 32) wgmma_wait<0>(own_d, own_a);";
    check(product);
}

ABORTS(copy_into_a_tile_that_wgmma_reads, "that a cp.async in flight writes") {
    Product product = without();
    product.wait = "cp_async16(raw + 8192 + 32, image, true); wgmma_wait<0>(own_d, own_a);";
    check(product);
}

ABORTS(left_operand_overwritten_before_the_wait, "the left operand was overwritten") {
    Product product = without();
    product.wait = "own_a[0][3]++; wgmma_wait<0>(own_d, own_a);";
    check(product);
}

ABORTS(wait_without_the_left_operand, "does not name the left operand") {
    Product product = without();
    product.wait = "wgmma_wait<0>(own_d);";
    check(product);
}

ABORTS(wait_without_the_sums, "does not name the sums") {
    Product product = without();
    product.wait = "wgmma_wait<0>(own_a);";
    check(product);
}

// Sums are not there before the wait.
PASSES(sums_of_wgmma_arrive_at_the_wait) {
    open_device();
    const CUfunction kernel = load_kernel(R"(
        KERNEL void test(float* out) {
            DYNAMIC_SHARED(raw);
            cp_async16(raw + threadIdx.x * 16, out, false);
            cp_async_commit();
            cp_async_wait<0>();
            fence_proxy_async();
            __syncthreads();
            const u32 a[1][4] = {};
            float d[4][4] = {};
            wgmma_fence();
            wgmma<Major::MN>(d, a[0], matrix_descriptor(raw, 16, 1024), 1);
            wgmma_commit();
            out[threadIdx.x] = d[0][0];
            wgmma_wait<0>(d, a);
            out[128 + threadIdx.x] = d[0][0];
        }
        EXPORT_KERNEL(test))", "test");
    CUdeviceptr out = upload(std::vector<float>(256, 1.0f));
    CHECK_EQUAL(launch(kernel, {1, THREADS, 2048}, nullptr, {&out}), 0);
    const std::vector<float> values = download<float>(out, 256);
    CHECK(values[5] != values[5] && values[133] == 0.0f);
}
