// NCCL's values, as in nccl.h.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

enum ncclResult_t : int {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
};

enum ncclDataType_t : int {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,
};

enum ncclRedOp_t : int { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 };

struct ncclUniqueId {
    char internal[128];
};

// The first fields of ncclConfig_t, which are the same in every version.
struct ncclConfig_t {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
};

constexpr unsigned CONFIG_MAGIC = 0xcafebeef;
constexpr int CONFIG_UNDEFINED = INT_MIN;
