// CUDA's keywords and built-in types, as far as kernels use them.
#pragma once

#include <cstdint>

typedef uint16_t u16;
typedef uint32_t u32;
// As on the device, where long is not the name of the 64-bit type.
typedef unsigned long long u64;
typedef long long i64;

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

#define DEV static inline
#define KERNEL extern "C"

// All static shared variables lie in one section, so that it can be poisoned before each block.
#define __shared__ static __attribute__((section("simt_shared")))
#define DYNAMIC_SHARED(name) unsigned char* const name = simt::dynamic_shared

struct dim3 {
    unsigned x = 1;
    unsigned y = 1;
    unsigned z = 1;
};

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};

DEV float2 make_float2(float x, float y) { return {x, y}; }
DEV float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
DEV int2 make_int2(int x, int y) { return {x, y}; }
DEV int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
DEV uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
DEV uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
DEV double2 make_double2(double x, double y) { return {x, y}; }
