// CUDA's functions of numbers that C++ does not have under the same name, and packed bf16.
#pragma once

#include <cmath>

#include "types.h"

using std::isfinite;
using std::isinf;
using std::isnan;

// Macros, because the C library declares functions of these names.
#define __expf(x) expf(x)
#define __logf(x) logf(x)

DEV float rsqrtf(float x) { return 1.0f / sqrtf(x); }
DEV double rsqrt(double x) { return 1.0 / sqrt(x); }
DEV float __fdividef(float x, float y) { return x / y; }
DEV float __frcp_rn(float x) { return 1.0f / x; }
DEV float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
DEV float __fmul_rn(float x, float y) { return x * y; }
DEV float __fadd_rn(float x, float y) { return x + y; }
DEV float fast_exp2(float x) { return exp2f(x); }

DEV int min(int a, int b) { return a < b ? a : b; }
DEV int max(int a, int b) { return a > b ? a : b; }
DEV u32 min(u32 a, u32 b) { return a < b ? a : b; }
DEV u32 max(u32 a, u32 b) { return a > b ? a : b; }
DEV i64 min(i64 a, i64 b) { return a < b ? a : b; }
DEV i64 max(i64 a, i64 b) { return a > b ? a : b; }
DEV float min(float a, float b) { return fminf(a, b); }
DEV float max(float a, float b) { return fmaxf(a, b); }

template <class To, class From>
DEV To simt_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

DEV float __uint_as_float(u32 bits) { return simt_bits<float>(bits); }
DEV u32 __float_as_uint(float x) { return simt_bits<u32>(x); }
DEV float __int_as_float(int bits) { return simt_bits<float>(bits); }
DEV int __float_as_int(float x) { return simt_bits<int>(x); }

DEV int __popc(u32 bits) { return __builtin_popcount(bits); }
DEV int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(u32(bits)); }
DEV int __ffs(int bits) { return __builtin_ffs(bits); }

template <class T>
DEV T __ldg(const T* from) {
    return *from;
}

DEV void __threadfence() {}
DEV void __threadfence_block() {}

// The nearest bf16, ties to even; not a number becomes 0x7fff, as cvt.rn.bf16x2.f32 does.
DEV u32 simt_bf16_bits(float x) {
    const u32 bits = __float_as_uint(x);
    const u32 rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded;
}

DEV u32 bf16x2_pack(float lo, float hi) { return simt_bf16_bits(lo) | simt_bf16_bits(hi) << 16; }
DEV float bf16_lo(u32 packed) { return __uint_as_float(packed << 16); }
DEV float bf16_hi(u32 packed) { return __uint_as_float(packed & 0xffff0000u); }
