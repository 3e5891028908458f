// Which problems are refused.
#include "problem.h"

#include "../image.h"

namespace emulated {

bool Problem::has_bias() const {
    const uint32_t epilogue = descriptor.epilogue;
    return epilogue == EPILOGUE_BIAS || epilogue == EPILOGUE_GELU_BIAS ||
           epilogue == EPILOGUE_GELU_AUX_BIAS;
}

bool Problem::writes_aux() const {
    const uint32_t epilogue = descriptor.epilogue;
    return epilogue == EPILOGUE_GELU_AUX || epilogue == EPILOGUE_GELU_AUX_BIAS;
}

bool Problem::reads_aux() const { return descriptor.epilogue == EPILOGUE_DGELU; }

bool Problem::has_gelu() const {
    const uint32_t epilogue = descriptor.epilogue;
    return writes_aux() || epilogue == EPILOGUE_GELU || epilogue == EPILOGUE_GELU_BIAS;
}

size_t Problem::aux_bytes() const {
    return ((n() - 1) * size_t(descriptor.aux_ld) + m()) * d.element_bytes();
}

uint64_t Problem::key() const {
    uint64_t fields[32] = {};
    int count = 0;
    for (const Layout* layout : {&a, &b, &c, &d}) {
        fields[count++] = layout->type;
        fields[count++] = layout->rows;
        fields[count++] = layout->cols;
        fields[count++] = uint64_t(layout->ld);
    }
    fields[count++] = uint64_t(descriptor.transa);
    fields[count++] = uint64_t(descriptor.transb);
    fields[count++] = descriptor.epilogue;
    fields[count++] = uint64_t(descriptor.aux_ld);
    fields[count++] = uint64_t(descriptor.compute_type);
    return checksum(reinterpret_cast<const char*>(fields), sizeof fields);
}

static cublasStatus_t check_layout(const Layout& layout) {
    if (layout.rows == 0 || layout.cols == 0 || layout.ld < int64_t(layout.rows)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (layout.type != CUDA_R_32F && layout.type != CUDA_R_16BF) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (layout.order != ORDER_COLUMN_MAJOR || layout.batch_count != 1) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    // Odd columns would start at addresses that are no multiple of four bytes.
    const bool odd = layout.type == CUDA_R_16BF && layout.ld % 2 != 0;
    return odd ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

static bool known_operation(int32_t operation) {
    return operation == CUBLAS_OP_N || operation == CUBLAS_OP_T || operation == CUBLAS_OP_C;
}

static bool shapes_agree(const Problem& problem) {
    const bool a_plain = problem.descriptor.transa == CUBLAS_OP_N;
    const bool b_plain = problem.descriptor.transb == CUBLAS_OP_N;
    const uint64_t m = a_plain ? problem.a.rows : problem.a.cols;
    const uint64_t b_k = b_plain ? problem.b.rows : problem.b.cols;
    const uint64_t n = b_plain ? problem.b.cols : problem.b.rows;
    return m == problem.d.rows && n == problem.d.cols && b_k == problem.k() &&
           problem.c.rows == problem.d.rows && problem.c.cols == problem.d.cols;
}

static bool types_supported(const Problem& problem) {
    const bool outputs_agree = problem.c.type == problem.d.type;
    const bool inputs_agree = problem.a.type == problem.b.type;
    const bool narrows = problem.a.type == CUDA_R_32F && problem.d.type == CUDA_R_16BF;
    return outputs_agree && inputs_agree && !narrows;
}

static bool is_type_of_d(int32_t type, const Problem& problem) {
    return type == TYPE_OF_D || uint32_t(type) == problem.d.type;
}

static cublasStatus_t check_epilogue(const Problem& problem) {
    const Descriptor& descriptor = problem.descriptor;
    const bool known = descriptor.epilogue == EPILOGUE_DEFAULT || problem.has_bias() ||
                       problem.has_gelu() || problem.reads_aux();
    if (!known || !is_type_of_d(descriptor.bias_type, problem) ||
        !is_type_of_d(descriptor.aux_type, problem)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (problem.writes_aux() || problem.reads_aux()) {
        const bool fits = descriptor.aux_ld >= int64_t(problem.m()) && descriptor.aux_ld % 8 == 0;
        return fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check(const Problem& problem) {
    const Descriptor& descriptor = problem.descriptor;
    if (!known_operation(descriptor.transa) || !known_operation(descriptor.transb)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (descriptor.compute_type != CUBLAS_COMPUTE_32F || descriptor.scale_type != CUDA_R_32F ||
        descriptor.pointer_mode != POINTER_MODE_HOST) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    for (const Layout* layout : {&problem.a, &problem.b, &problem.c, &problem.d}) {
        const cublasStatus_t status = check_layout(*layout);
        if (status != CUBLAS_STATUS_SUCCESS) {
            return status;
        }
    }
    if (!shapes_agree(problem)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (!types_supported(problem)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return check_epilogue(problem);
}

}  // namespace emulated
