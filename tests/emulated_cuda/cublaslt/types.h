// cuBLASLt's values, as in cublasLt.h, and what is behind its handles.
#pragma once

#include <cstddef>
#include <cstdint>

enum cublasStatus_t : int {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
};

enum cudaDataType_t : int { CUDA_R_32F = 0, CUDA_R_16BF = 14 };
enum cublasComputeType_t : int { CUBLAS_COMPUTE_32F = 68 };
enum cublasOperation_t : int { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2 };

enum Epilogue : uint32_t {
    EPILOGUE_DEFAULT = 1,
    EPILOGUE_BIAS = 4,
    EPILOGUE_GELU = 32,
    EPILOGUE_GELU_BIAS = 36,
    EPILOGUE_GELU_AUX = 160,
    EPILOGUE_GELU_AUX_BIAS = 164,
    EPILOGUE_DGELU = 192,
};

enum DescriptorAttribute : int {
    DESCRIPTOR_COMPUTE_TYPE = 0,
    DESCRIPTOR_SCALE_TYPE = 1,
    DESCRIPTOR_POINTER_MODE = 2,
    DESCRIPTOR_TRANSA = 3,
    DESCRIPTOR_TRANSB = 4,
    DESCRIPTOR_EPILOGUE = 7,
    DESCRIPTOR_BIAS_POINTER = 8,
    DESCRIPTOR_EPILOGUE_AUX_POINTER = 11,
    DESCRIPTOR_EPILOGUE_AUX_LD = 12,
    DESCRIPTOR_EPILOGUE_AUX_DATA_TYPE = 22,
    DESCRIPTOR_BIAS_DATA_TYPE = 26,
};

enum LayoutAttribute : int {
    LAYOUT_TYPE = 0,
    LAYOUT_ORDER = 1,
    LAYOUT_ROWS = 2,
    LAYOUT_COLS = 3,
    LAYOUT_LD = 4,
    LAYOUT_BATCH_COUNT = 5,
    LAYOUT_STRIDED_BATCH_OFFSET = 6,
};

enum PreferenceAttribute : int {
    PREFERENCE_SEARCH_MODE = 0,
    PREFERENCE_MAX_WORKSPACE_BYTES = 1,
    PREFERENCE_REDUCTION_SCHEME_MASK = 3,
    PREFERENCE_MIN_ALIGNMENT_A_BYTES = 5,
    PREFERENCE_MIN_ALIGNMENT_B_BYTES = 6,
    PREFERENCE_MIN_ALIGNMENT_C_BYTES = 7,
    PREFERENCE_MIN_ALIGNMENT_D_BYTES = 8,
};

constexpr int32_t ORDER_COLUMN_MAJOR = 0;
constexpr int32_t POINTER_MODE_HOST = 0;
constexpr int32_t TYPE_OF_D = -1;

namespace emulated {

struct LightHandle {
    int device;
};

struct Descriptor {
    int32_t compute_type = CUBLAS_COMPUTE_32F;
    int32_t scale_type = CUDA_R_32F;
    int32_t pointer_mode = POINTER_MODE_HOST;
    int32_t transa = CUBLAS_OP_N;
    int32_t transb = CUBLAS_OP_N;
    uint32_t epilogue = EPILOGUE_DEFAULT;
    const void* bias = nullptr;
    void* aux = nullptr;
    int64_t aux_ld = 0;
    int32_t aux_type = TYPE_OF_D;
    int32_t bias_type = TYPE_OF_D;
};

struct Layout {
    uint32_t type = CUDA_R_32F;
    int32_t order = ORDER_COLUMN_MAJOR;
    uint64_t rows = 0;
    uint64_t cols = 0;
    int64_t ld = 0;
    int32_t batch_count = 1;
    int64_t batch_offset = 0;

    size_t element_bytes() const { return type == CUDA_R_16BF ? 2 : 4; }
    // From the first to the last element.
    size_t bytes() const { return ((cols - 1) * size_t(ld) + rows) * element_bytes(); }
};

struct Preference {
    uint32_t search_mode = 0;
    uint64_t workspace_max = 0;
    uint32_t reduction_mask = 0;
    // Of A, B, C and D.
    uint32_t alignment[4] = {256, 256, 256, 256};
};

// What cublasLtMatmulAlgo_t contains here: 64 bytes that the caller does not look into.
struct Algorithm {
    uint64_t magic;
    // Of everything that the algorithm was chosen for.
    uint64_t problem;
    uint64_t workspace_bytes;
    uint32_t alignment[4];
    // Position in the order of the heuristic, from 0.
    uint64_t position;
    uint64_t reserved[2];
};
static_assert(sizeof(Algorithm) == 64);

struct HeuristicResult {
    Algorithm algorithm;
    size_t workspace_bytes;
    cublasStatus_t state;
    float waves;
    int reserved[4];
};
static_assert(sizeof(HeuristicResult) == 64 + 8 + 4 + 4 + 16);

}  // namespace emulated
