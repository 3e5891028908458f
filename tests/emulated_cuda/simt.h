// CUDA C++ on the host: a kernel's source compiled by g++ -std=gnu++17 includes this in place of
// the device side of intrinsics.cuh. One fiber runs each CUDA thread; blocks run one after another.
//
// What is checked: barriers that only a part of a block reaches, warp operations that the lanes of
// the mask do not all call, deadlocks, writes past dynamic shared memory, misaligned addresses of
// ldmatrix and cp.async. Shared memory is poisoned before each block, and a cp.async copies at the
// wait for it, so that a missing wait or barrier shows in results; so does wgmma, which reads only
// what a fence made visible to it. EMULATED_CUDA_SEED other than 0 varies the order of blocks,
// warps and lanes.
//
// What is not possible here: TMA, mbarrier, clusters, cuda_bf16.h, spinning on memory that another
// thread writes; wgmma of tiles that anything but cp.async wrote, or with a left operand that runs
// along M.
#pragma once

#include "simt/types.h"

#include "simt/engine.h"

#include "simt/warp.h"

#include "simt/math.h"

#include "simt/async_copy.h"
#include "simt/atomics.h"
#include "simt/launch.h"
#include "simt/tensor_core.h"
#include "simt/warpgroup.h"

#define threadIdx (simt::thread_index)
#define blockIdx (simt::block_index)
#define blockDim (simt::block_size)
#define gridDim (simt::grid_size)
