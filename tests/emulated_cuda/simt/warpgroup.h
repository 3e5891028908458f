// wgmma. Each warp computes its 16 of the 64 rows, and only when it waits for them: a kernel that
// overwrites a tile too early, or reads sums too early, has wrong results. Until then the sums are
// not a number, and left operands in registers must not change. All warps of a warpgroup have to
// start the same products.
//
// Fragments are those of mma.sync (tensor_core.h). A matrix in shared memory, as the PTX manual
// describes it for a swizzle of 128 bytes, has rows of 128 bytes in groups of eight; the 16-byte
// pieces of a row are permuted by exclusive or with bits 7 to 9 of the address.
#pragma once

#include "async_copy.h"
#include "engine.h"
#include "math.h"
#include "warp.h"

enum class Major { K, MN };

namespace simt {

constexpr int WARPGROUP_WARPS = 4;
constexpr int WARP_ROWS = 16;
constexpr int SUM_LENGTH = 16;
constexpr int COLUMNS_MAX = 128;
constexpr int PRODUCTS_MAX = 64;
constexpr int SUMS_MAX = 4;

// Sums of a warp that products in flight add to.
struct ProductSums {
    float* lanes[LANES];
    int columns;
    int products = 0;
    float at[WARP_ROWS][COLUMNS_MAX];
};

// A matrix in shared memory, decoded.
struct Matrix {
    u32 start;
    u32 leading_bytes;
    u32 stride_bytes;
    Major major;
};

struct Product {
    Place place;
    ProductSums* sums;
    bool left_is_in_registers;
    const u32* left_registers[LANES];
    u32 left_at_start[LANES][4];
    Matrix left;
    Matrix right;
    bool accumulate;
};

// The products of a warp in flight, the oldest first. Commits are marked by the number of products
// before.
struct Products {
    int count = 0;
    int groups = 0;
    Product* pending[PRODUCTS_MAX];
    int group_end[PRODUCTS_MAX];
    ProductSums sums[SUMS_MAX];
    // Whether a wgmma.fence orders what was done to registers since the last wait.
    bool fenced = false;
    // Of all products so far, for the comparison of the warps.
    u64 digest = 0;
};

static Products* products[WARPS_MAX];

DEV Products& own_products() { return *products[(current - fibers) / LANES]; }

static void prepare_warpgroups() {
    for (int warp = 0; warp * LANES < threads; warp++) {
        if (products[warp] == nullptr) {
            products[warp] = new Products;
        }
        products[warp]->fenced = false;
        products[warp]->digest = 0;
    }
}

static void check_thread_products() {
    if (own_products().count > 0) {
        die("a thread returns with a wgmma that it has not waited for");
    }
}

static void check_warpgroups() {
    for (int warp = 0; warp * LANES < threads; warp++) {
        const int first = warp / WARPGROUP_WARPS * WARPGROUP_WARPS;
        if (products[warp]->digest != products[first]->digest) {
            die("divergent warpgroup: its warps did not start the same wgmma");
        }
    }
}

// An error in what a product uses.
[[noreturn]] static void die_of(const Product& product, const char* what) {
    char text[200];
    const Place& place = product.place;
    snprintf(text, sizeof text, "wgmma at %s:%d: %s", place.file, place.line, what);
    die(text);
}

DEV u32 bits_of(u64 word, int first, int count) {
    return u32(word >> first & ((u64(1) << count) - 1));
}

DEV Matrix decoded(u64 descriptor, Major major) {
    const bool swizzles_128_bytes = bits_of(descriptor, 62, 2) == 1;
    const u32 base_offset = bits_of(descriptor, 49, 3);
    if (!swizzles_128_bytes || base_offset != 0) {
        die("a descriptor of wgmma other than for tiles at multiples of 1024, swizzled by 128");
    }
    return {bits_of(descriptor, 0, 14) << 4, bits_of(descriptor, 16, 14) << 4,
            bits_of(descriptor, 32, 14) << 4, major};
}

// Where an element is: `row` along M or N, `k` along the sum.
DEV const unsigned char* element_address(const Matrix& matrix, int row, int k) {
    u32 address = matrix.start;
    if (matrix.major == Major::K) {
        address += u32(row / 8) * matrix.stride_bytes + u32(row % 8 * 128 + k * 2);
    } else {
        address += u32(row / 64) * matrix.leading_bytes + u32(row % 64 * 2) +
                   u32(k / 8) * matrix.stride_bytes + u32(k % 8 * 128);
    }
    address ^= (address >> 7 & 7) << 4;
    if (address >= DYNAMIC_SHARED_MAX) {
        die("a wgmma reads outside of shared memory");
    }
    return dynamic_shared + address;
}

// Calls `visit` with each element of rows `first` to `end`, where wgmma may read it: eight of them,
// which are one piece of memory, are checked together.
template <class Visit>
DEV void for_each_element(const Matrix& matrix, int first, int end, Visit visit) {
    const bool along_k = matrix.major == Major::K;
    const int rows = along_k ? 1 : 8;
    const int ks = along_k ? 8 : 1;
    for (int row = first; row < end; row += rows) {
        for (int k = 0; k < SUM_LENGTH; k += ks) {
            const unsigned char* piece = element_address(matrix, row, k);
            if (const char* reason = unseen_text(piece_at(piece))) {
                die(reason);
            }
            for (int i = 0; i < 8; i++) {
                const u16 bits = reinterpret_cast<const u16*>(piece)[i];
                visit(row + (along_k ? 0 : i), k + (along_k ? i : 0), bf16_lo(bits));
            }
        }
    }
}

struct ProductTiles {
    float left[WARP_ROWS][SUM_LENGTH];
    float right[SUM_LENGTH][COLUMNS_MAX];
};

DEV void load_left(ProductTiles& tiles, const Product& product, int first_row) {
    if (!product.left_is_in_registers) {
        const int end = first_row + WARP_ROWS;
        for_each_element(product.left, first_row, end, [&](int row, int k, float value) {
            tiles.left[row - first_row][k] = value;
        });
        return;
    }
    for (int lane = 0; lane < LANES; lane++) {
        const u32* registers = product.left_registers[lane];
        if (memcmp(registers, product.left_at_start[lane], 4 * sizeof(u32)) != 0) {
            die_of(product, "the left operand was overwritten before the wait");
        }
        for (int i = 0; i < 4; i++) {
            float* pair = &tiles.left[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8];
            pair[0] = bf16_lo(registers[i]);
            pair[1] = bf16_hi(registers[i]);
        }
    }
}

// Loads both operands. Done when a product is started as well: it may read from then on.
DEV void load_operands(ProductTiles& tiles, const Product& product, int warp) {
    load_left(tiles, product, warp % WARPGROUP_WARPS * WARP_ROWS);
    const int columns = product.sums->columns;
    for_each_element(product.right, 0, columns, [&](int column, int k, float value) {
        tiles.right[k][column] = value;
    });
}

// Calls `visit` with each sum in registers and the same in the tile.
template <class Visit>
DEV void for_each_sum(ProductSums& sums, Visit visit) {
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < sums.columns / 2; i++) {
            const int row = lane / 4 + i / 2 % 2 * 8;
            const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            visit(sums.lanes[lane][i], sums.at[row][column]);
        }
    }
}

DEV void perform(Product& product, int warp) {
    ProductTiles tiles;
    load_operands(tiles, product, warp);
    ProductSums& sums = *product.sums;
    for (int row = 0; row < WARP_ROWS; row++) {
        for (int column = 0; !product.accumulate && column < sums.columns; column++) {
            sums.at[row][column] = 0.0f;
        }
        for (int k = 0; k < SUM_LENGTH; k++) {
            for (int column = 0; column < sums.columns; column++) {
                sums.at[row][column] += tiles.left[row][k] * tiles.right[k][column];
            }
        }
    }
    sums.products--;
    if (sums.products == 0) {
        for_each_sum(sums, [](float& own, float& sum) { own = sum; });
    }
}

// Registers of a lane.
struct Registers {
    const void* start = nullptr;
    size_t bytes = 0;

    Registers() = default;
    template <class T, int K>
    Registers(T (&registers)[K][4]) : start(registers), bytes(sizeof registers) {}
};

// Registers that a wait releases, as a lane names them.
struct Released {
    Registers registers[4];

    bool has(const void* address) const {
        const char* at = static_cast<const char*>(address);
        for (const Registers& one : registers) {
            const char* start = static_cast<const char*>(one.start);
            if (at >= start && at < start + one.bytes) {
                return true;
            }
        }
        return false;
    }
};

// On a GPU the compiler may use registers that no wait names, while a product still does.
DEV void check_released(const Product& product, Released** lanes) {
    for (int lane = 0; lane < LANES; lane++) {
        if (product.left_is_in_registers && !lanes[lane]->has(product.left_registers[lane])) {
            die_of(product, "the wait for it does not name the left operand");
        }
        if (product.sums->products == 0 && !lanes[lane]->has(product.sums->lanes[lane])) {
            die_of(product, "the wait for it does not name the sums");
        }
    }
}

// Performs the oldest `done` groups of a warp and forgets them.
DEV void finish_products(Products& own, int done, int warp, Released** lanes) {
    const int end = own.group_end[done - 1];
    for (int i = 0; i < end; i++) {
        perform(*own.pending[i], warp);
        check_released(*own.pending[i], lanes);
        delete own.pending[i];
    }
    own.count -= end;
    own.groups -= done;
    memmove(own.pending, own.pending + end, size_t(own.count) * sizeof(Product*));
    for (int i = 0; i < own.groups; i++) {
        own.group_end[i] = own.group_end[i + done] - end;
    }
}

// A lane's part of a product.
struct ProductArguments {
    float* sums;
    const u32* left_registers;
    u64 left;
    u64 right;
    int accumulate;
};

// The sums that products in flight have already, or free ones with the values of the registers.
DEV ProductSums& sums_of(Products& own, ProductArguments** lanes, int columns) {
    ProductSums* free = nullptr;
    for (ProductSums& sums : own.sums) {
        if (sums.products > 0 && sums.lanes[0] == lanes[0]->sums) {
            return sums;
        }
        if (sums.products == 0) {
            free = &sums;
        }
    }
    if (free == nullptr) {
        die("more sums of wgmma in flight than the emulator keeps");
    }
    free->columns = columns;
    for (int lane = 0; lane < LANES; lane++) {
        free->lanes[lane] = lanes[lane]->sums;
    }
    for_each_sum(*free, [](float& own_sum, float& sum) {
        sum = own_sum;
        memset(&own_sum, POISON_BYTE, sizeof own_sum);
    });
    return *free;
}

DEV void check_uniform(ProductArguments** lanes) {
    for (int lane = 1; lane < LANES; lane++) {
        if (lanes[lane]->left != lanes[0]->left || lanes[lane]->right != lanes[0]->right ||
            lanes[lane]->accumulate != lanes[0]->accumulate) {
            die("the lanes of a warp give different descriptors to wgmma");
        }
    }
}

// What the last lane of a warp does.
DEV void start_product(ProductArguments** lanes, int columns, Major major, const Place& place) {
    const int warp = int(current - fibers) / LANES;
    Products& own = *products[warp];
    if (!own.fenced) {
        die("wgmma without a wgmma.fence after the registers were used");
    }
    if (threads % (WARPGROUP_WARPS * LANES) != 0) {
        die("wgmma in a block that does not consist of warpgroups");
    }
    if (own.count == PRODUCTS_MAX) {
        die("more wgmma of one warp in flight than the emulator keeps");
    }
    check_uniform(lanes);
    Product* product = new Product;
    product->place = place;
    product->sums = &sums_of(own, lanes, columns);
    product->sums->products++;
    product->left_is_in_registers = lanes[0]->left_registers != nullptr;
    for (int lane = 0; product->left_is_in_registers && lane < LANES; lane++) {
        product->left_registers[lane] = lanes[lane]->left_registers;
        memcpy(product->left_at_start[lane], lanes[lane]->left_registers, 4 * sizeof(u32));
    }
    if (!product->left_is_in_registers) {
        product->left = decoded(lanes[0]->left, Major::K);
    }
    product->right = decoded(lanes[0]->right, major);
    product->accumulate = lanes[0]->accumulate != 0;
    ProductTiles tiles;
    load_operands(tiles, *product, warp);
    own.pending[own.count++] = product;
    own.digest = own.digest * 1000003 + lanes[0]->right + lanes[0]->left * 31 + u64(columns);
}

template <int N8>
DEV void wgmma(ProductArguments own, Major major, const Place& place) {
    static_assert(N8 == 4 || N8 == 8 || N8 == 16, "N = 32, 64 or 128");
    rendezvous(0xffffffffu, place, own, [major, &place](ProductArguments** lanes) {
        start_product(lanes, N8 * 8, major, place);
    });
}

// A warp operation without arguments; the last lane does it.
template <class Operation>
DEV void for_warp(const Place& place, Operation operation) {
    int nothing = 0;
    rendezvous(0xffffffffu, place, nothing, [operation](int**) { operation(own_products()); });
}

}  // namespace simt

// The offset in dynamic shared memory.
DEV u32 shared_address(const void* pointer) {
    if (!simt::in_dynamic_shared(pointer)) {
        simt::die("only dynamic shared memory has addresses here");
    }
    return u32(static_cast<const unsigned char*>(pointer) - simt::dynamic_shared);
}

DEV void wgmma_fence(SIMT_HERE) {
    simt::for_warp({"wgmma_fence", file, line}, [](simt::Products& own) { own.fenced = true; });
}

DEV void wgmma_commit(SIMT_HERE) {
    simt::for_warp({"wgmma_commit", file, line}, [](simt::Products& own) {
        if (own.groups == simt::PRODUCTS_MAX) {
            simt::die("more groups of wgmma of one warp in flight than the emulator keeps");
        }
        own.group_end[own.groups++] = own.count;
    });
}

template <int N>
DEV void wgmma_wait(simt::Registers first = {}, simt::Registers second = {},
                    simt::Registers third = {}, simt::Registers fourth = {}, SIMT_HERE) {
    simt::Released released = {{first, second, third, fourth}};
    simt::rendezvous(0xffffffffu, {"wgmma_wait", file, line}, released,
                     [](simt::Released** lanes) {
        simt::Products& own = simt::own_products();
        if (own.groups > N) {
            const int warp = int(simt::current - simt::fibers) / simt::LANES;
            simt::finish_products(own, own.groups - N, warp, lanes);
        }
        own.fenced = false;
    });
}

// Only the compiler for GPUs moves waits.
DEV void compute_before_wait(float) {}

template <Major B, int N8>
DEV void wgmma(float (&d)[N8][4], const u32 (&a)[4], u64 b, int accumulate, SIMT_HERE) {
    simt::wgmma<N8>({d[0], a, 0, b, accumulate}, B, {"wgmma", file, line});
}

template <Major B, int N8>
DEV void wgmma(float (&d)[N8][4], u64 a, u64 b, int accumulate, SIMT_HERE) {
    simt::wgmma<N8>({d[0], nullptr, a, b, accumulate}, B, {"wgmma", file, line});
}
