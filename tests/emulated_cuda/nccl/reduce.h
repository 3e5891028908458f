// Element types and the arithmetic of reductions.
#pragma once

#include "types.h"

namespace emulated {

// 0 for a type that the emulator does not have.
size_t element_bytes(ncclDataType_t type);

// to[i] = to[i] op from[i]. The average is summed here and divided by finish_average.
void accumulate(ncclDataType_t type, ncclRedOp_t op, void* to, const void* from, size_t count);
void finish_average(ncclDataType_t type, void* values, size_t count, int ranks);

}  // namespace emulated
