// What kernels use beyond plain CUDA C++: short names of types, packed bf16, and the instructions
// for tensor cores and asynchronous copies, as inline PTX for sm_80 and newer.
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

// The launch's dynamic shared memory, aligned to 128 bytes.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

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

#else
#include "simt.h"
#endif
