// Handles, descriptors, layouts and preferences.
#include <cstring>

#include "../cuda_abi.h"
#include "../emulated_cuda.h"
#include "types.h"

using namespace emulated;

CUDA_API size_t cublasLtGetVersion() { return 120900; }
CUDA_API size_t cublasLtGetCudartVersion() { return 12090; }

CUDA_API const char* cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
        case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
        case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
        case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
        default: return "CUBLAS_STATUS unknown";
    }
}

CUDA_API const char* cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS: return "success";
        case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
        case CUBLAS_STATUS_INVALID_VALUE:
            return "an unsupported value or parameter was passed to the function";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality requested is not supported";
        default: return cublasLtGetStatusName(status);
    }
}

CUDA_API cublasStatus_t cublasLtCreate(LightHandle** handle) {
    const int device = emulated_cuda_physical_device();
    if (device < 0) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    *handle = new LightHandle{device};
    return CUBLAS_STATUS_SUCCESS;
}

template <class T>
static cublasStatus_t destroy(T* object) {
    if (object == nullptr) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}

CUDA_API cublasStatus_t cublasLtDestroy(LightHandle* handle) { return destroy(handle); }

// Sets a field if the caller's size is right.
template <class T>
static cublasStatus_t set(T& field, const void* value, size_t bytes) {
    if (value == nullptr || bytes != sizeof field) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(&field, value, sizeof field);
    return CUBLAS_STATUS_SUCCESS;
}

CUDA_API cublasStatus_t cublasLtMatmulDescCreate(Descriptor** descriptor, int compute_type,
                                                 int scale_type) {
    *descriptor = new Descriptor;
    (*descriptor)->compute_type = compute_type;
    (*descriptor)->scale_type = scale_type;
    return CUBLAS_STATUS_SUCCESS;
}

CUDA_API cublasStatus_t cublasLtMatmulDescDestroy(Descriptor* descriptor) {
    return destroy(descriptor);
}

CUDA_API cublasStatus_t cublasLtMatmulDescSetAttribute(Descriptor* descriptor, int attribute,
                                                       const void* value, size_t bytes) {
    if (descriptor == nullptr) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    switch (attribute) {
        case DESCRIPTOR_COMPUTE_TYPE: return set(descriptor->compute_type, value, bytes);
        case DESCRIPTOR_SCALE_TYPE: return set(descriptor->scale_type, value, bytes);
        case DESCRIPTOR_POINTER_MODE: return set(descriptor->pointer_mode, value, bytes);
        case DESCRIPTOR_TRANSA: return set(descriptor->transa, value, bytes);
        case DESCRIPTOR_TRANSB: return set(descriptor->transb, value, bytes);
        case DESCRIPTOR_EPILOGUE: return set(descriptor->epilogue, value, bytes);
        case DESCRIPTOR_BIAS_POINTER: return set(descriptor->bias, value, bytes);
        case DESCRIPTOR_EPILOGUE_AUX_POINTER: return set(descriptor->aux, value, bytes);
        case DESCRIPTOR_EPILOGUE_AUX_LD: return set(descriptor->aux_ld, value, bytes);
        case DESCRIPTOR_EPILOGUE_AUX_DATA_TYPE: return set(descriptor->aux_type, value, bytes);
        case DESCRIPTOR_BIAS_DATA_TYPE: return set(descriptor->bias_type, value, bytes);
        default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

CUDA_API cublasStatus_t cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows,
                                                   uint64_t cols, int64_t ld) {
    *layout = new Layout;
    (*layout)->type = uint32_t(type);
    (*layout)->rows = rows;
    (*layout)->cols = cols;
    (*layout)->ld = ld;
    return CUBLAS_STATUS_SUCCESS;
}

CUDA_API cublasStatus_t cublasLtMatrixLayoutDestroy(Layout* layout) { return destroy(layout); }

CUDA_API cublasStatus_t cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute,
                                                         const void* value, size_t bytes) {
    if (layout == nullptr) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    switch (attribute) {
        case LAYOUT_TYPE: return set(layout->type, value, bytes);
        case LAYOUT_ORDER: return set(layout->order, value, bytes);
        case LAYOUT_ROWS: return set(layout->rows, value, bytes);
        case LAYOUT_COLS: return set(layout->cols, value, bytes);
        case LAYOUT_LD: return set(layout->ld, value, bytes);
        case LAYOUT_BATCH_COUNT: return set(layout->batch_count, value, bytes);
        case LAYOUT_STRIDED_BATCH_OFFSET: return set(layout->batch_offset, value, bytes);
        default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

CUDA_API cublasStatus_t cublasLtMatmulPreferenceCreate(Preference** preference) {
    *preference = new Preference;
    return CUBLAS_STATUS_SUCCESS;
}

CUDA_API cublasStatus_t cublasLtMatmulPreferenceDestroy(Preference* preference) {
    return destroy(preference);
}

CUDA_API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute,
                                                             const void* value, size_t bytes) {
    if (preference == nullptr) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    uint32_t* alignment = preference->alignment;
    switch (attribute) {
        case PREFERENCE_SEARCH_MODE: return set(preference->search_mode, value, bytes);
        case PREFERENCE_MAX_WORKSPACE_BYTES: return set(preference->workspace_max, value, bytes);
        case PREFERENCE_REDUCTION_SCHEME_MASK:
            return set(preference->reduction_mask, value, bytes);
        case PREFERENCE_MIN_ALIGNMENT_A_BYTES: return set(alignment[0], value, bytes);
        case PREFERENCE_MIN_ALIGNMENT_B_BYTES: return set(alignment[1], value, bytes);
        case PREFERENCE_MIN_ALIGNMENT_C_BYTES: return set(alignment[2], value, bytes);
        case PREFERENCE_MIN_ALIGNMENT_D_BYTES: return set(alignment[3], value, bytes);
        default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}
