// What kernels use beyond plain CUDA C++: short names of types, packed bf16, and the instructions
// for tensor cores and asynchronous copies, as inline PTX for sm_80 and newer; those of warpgroups
// for sm_90a alone.
//
// This is the only file in which a GPU and the emulated device differ: compiled by g++ it includes
// simt.h, which has the same names as plain C++. Every other line of a kernel is the same on both.
#pragma once

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEV static __device__ __forceinline__
#define KERNEL extern "C" __global__

// The launch's dynamic shared memory, aligned to 1,024 bytes: the swizzled tiles of wgmma are.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

// The emulated device needs a list of kernels, and runs those without any barrier or warp operation
// faster.
#define EXPORT_KERNEL(name)
#define EXPORT_KERNEL_ELEMENTWISE(name)

// Two f32 rounded to the nearest bf16, ties to even; `lo` is in the lower half.
DEV u32 bf16x2_pack(float lo, float hi) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
    return packed;
}

DEV float bf16_lo(u32 packed) { return __uint_as_float(packed << 16); }
DEV float bf16_hi(u32 packed) { return __uint_as_float(packed & 0xffff0000u); }

// 2 to the power of x, with a relative error of about 2^-22. Denormal results become zero.
DEV float fast_exp2(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// The address within shared memory, as instructions want it.
DEV u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// d += a b by a whole warp: a (16, 16) and b (16, 8) in bf16, d (16, 8) in f32. Fragments are laid
// out as the PTX manual says for mma.m16n8k16.
DEV void mma16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four matrices of 8 rows of 16 bytes by a whole warp: lanes 8 i to 8 i + 7 give the addresses of
// the rows of matrix i, and r[i] receives this lane's two elements of it.
DEV void ldmatrix_x4(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same, with every matrix transposed.
DEV void ldmatrix_x4_trans(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Starts a copy of 16 bytes from global to shared memory, or of zeros where not `valid`: then
// nothing is read.
DEV void cp_async16(void* shared, const void* global, bool valid) {
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(global), "r"(bytes)
                 : "memory");
}

// Makes the copies that this thread started since the last commit a group.
DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N groups of this thread, the newest, are still in flight.
template <int N>
DEV void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

// ---- Warpgroups of sm_90a: four warps, the first a multiple of four ----

// Orders this thread's writes to shared memory, copies that it waited for among them, before reads
// by wgmma. The barrier after it makes this true for the block.
DEV void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Orders accesses to registers before wgmma that use them: sums, and left operands.
DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Makes the products that were started since the last commit a group.
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// NVRTC's front end knows the start of a product, not that it uses registers until the wait for it.
// In the PTX it writes, sums are used only behind this, and left operands keep their values until
// here. ptxas, which assigns the registers, is not bound by this: only a disassembly shows what it
// reuses, which the test of the compiled kernels reads.
template <int K>
DEV void keep_until_here(float (&sums)[K][4]) {
#pragma unroll
    for (int i = 0; i < 4 * K; i++) {
        asm volatile("" : "+f"(sums[i / 4][i % 4]) : : "memory");
    }
}
template <int K>
DEV void keep_until_here(const u32 (&left)[K][4]) {
#pragma unroll
    for (int i = 0; i < 4 * K; i++) {
        asm volatile("" : : "r"(left[i / 4][i % 4]) : "memory");
    }
}

// Waits until at most N groups of products, the newest, are still in flight. `released` are the
// sums and the left operands in registers of the others.
template <int N, class... Registers>
DEV void wgmma_wait(Registers&... released) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(N) : "memory");
    (keep_until_here(released), ...);
}

// Keeps waits that follow behind the computation of a value: ptxas moves them forward to where
// something orders them. Here that is a store which no result of arithmetic makes happen.
DEV void compute_before_wait(float value) {
    asm volatile("{ .reg .pred never; setp.eq.b32 never, %0, 0xffffffff; "
                 "@never st.shared.b32 [%1], %0; }"
                 :
                 : "r"(__float_as_uint(value)), "r"(0)
                 : "memory");
}

// The direction in which an operand of wgmma runs in memory: along the sum (K), or along the rows
// of a left operand and the columns of a right one (MN).
enum class Major { K, MN };

// wgmma<B>(d, a, b, accumulate) starts d += a b by a warpgroup: a (64, 16) and b (16, N) in bf16, d
// (64, N) in f32, for N = 32, 64 or 128. With `accumulate` 0 it starts d = a b. In one form a is in
// registers; fragments of a and d are those of mma16816, for each warp 16 rows. Matrices in shared
// memory are given by a matrix_descriptor; there, a runs along the sum.
#define WGMMA_FOUR(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define WGMMA_SUMS_16(d, n) \
    WGMMA_FOUR(d, n), WGMMA_FOUR(d, n + 1), WGMMA_FOUR(d, n + 2), WGMMA_FOUR(d, n + 3)
#define WGMMA_SUMS_32(d, n) WGMMA_SUMS_16(d, n), WGMMA_SUMS_16(d, n + 4)
#define WGMMA_SUMS_64(d, n) WGMMA_SUMS_32(d, n), WGMMA_SUMS_32(d, n + 8)
#define WGMMA_NAMES_16 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_32 WGMMA_NAMES_16 ", " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29" \
    ", %30, %31"
#define WGMMA_NAMES_64 WGMMA_NAMES_32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45" \
    ", %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59" \
    ", %60, %61, %62, %63"

// Both forms for one N; the names are those of the operands behind N / 2 sums.
#define WGMMA_SHAPE(N, SUMS, P0, P1, P2, P3, P4, P5, P6)                                        \
    template <Major B>                                                                          \
    DEV void wgmma(float (&d)[N / 8][4], const u32 (&a)[4], u64 b, int accumulate) {            \
        asm volatile("{ .reg .pred accumulate; setp.ne.b32 accumulate, " P5 ", 0; "             \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 "                \
                     "{" WGMMA_NAMES_##SUMS "}, {" P0 ", " P1 ", " P2 ", " P3 "}, " P4 ", "     \
                     "accumulate, 1, 1, " P6 "; }"                                              \
                     : WGMMA_SUMS_##SUMS(d, 0)                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate),     \
                       "n"(int(B)));                                                            \
    }                                                                                           \
    template <Major B>                                                                          \
    DEV void wgmma(float (&d)[N / 8][4], u64 a, u64 b, int accumulate) {                        \
        asm volatile("{ .reg .pred accumulate; setp.ne.b32 accumulate, " P2 ", 0; "             \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 "                \
                     "{" WGMMA_NAMES_##SUMS "}, " P0 ", " P1 ", accumulate, 1, 1, 0, " P3 "; }" \
                     : WGMMA_SUMS_##SUMS(d, 0)                                                  \
                     : "l"(a), "l"(b), "r"(accumulate), "n"(int(B)));                           \
    }
WGMMA_SHAPE(32, 16, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
WGMMA_SHAPE(64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
WGMMA_SHAPE(128, 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")

#else
#include "simt.h"
#endif

// A matrix in shared memory for wgmma, with a swizzle of 128 bytes: in a row of 128 bytes, at a
// multiple of 128, the 16-byte pieces are permuted by exclusive or with the row's number modulo 8.
// Eight rows are followed by the next eight at a distance of `stride_bytes`. Where it runs along
// MN, the next 64 rows or columns of the matrix are at a distance of `leading_bytes`.
DEV u64 matrix_descriptor(const void* start, u32 leading_bytes, u32 stride_bytes) {
    constexpr u64 SWIZZLE_128_BYTES = 1;
    const u64 address = shared_address(start) & 0x3ffff;
    return address >> 4 | u64(leading_bytes >> 4) << 16 | u64(stride_bytes >> 4) << 32 |
           SWIZZLE_128_BYTES << 62;
}
