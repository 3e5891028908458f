// What is checked when a descriptor is complete.
#include "engines.h"

#include "../emulated_cuda.h"

namespace emulated {

std::shared_ptr<Descriptor> Descriptor::descriptor(int attribute, size_t index) const {
    const auto found = attributes.at(attribute).descriptors.at(index).lock();
    if (found == nullptr) {
        emulated_cuda_violation("a descriptor that attribute %d of another refers to was destroyed",
                                attribute);
    }
    return found;
}

std::vector<std::shared_ptr<Descriptor>> Descriptor::descriptors(int attribute) const {
    std::vector<std::shared_ptr<Descriptor>> found;
    for (size_t i = 0; has(attribute) && i < attributes.at(attribute).descriptors.size(); i++) {
        found.push_back(descriptor(attribute, i));
    }
    return found;
}

static cudnnStatus_t check_tensor(const Descriptor& descriptor) {
    const Tensor tensor = Tensor::of(descriptor);
    for (int i = 0; i < 4; i++) {
        if (tensor.dimensions[size_t(i)] < 1 || tensor.strides[size_t(i)] < 1) {
            return refuse(CUDNN_STATUS_BAD_PARAM, "dimension or stride %d is not positive", i);
        }
    }
    const bool known = tensor.data_type == DATA_FLOAT || tensor.data_type == DATA_BFLOAT16;
    if (!known) {
        return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "data type %d", tensor.data_type);
    }
    if (tensor.is_virtual && tensor.by_value) {
        return refuse(CUDNN_STATUS_BAD_PARAM, "a tensor is virtual and by value");
    }
    const bool power = tensor.alignment > 0 && (tensor.alignment & (tensor.alignment - 1)) == 0;
    if (!power || tensor.alignment < int64_t(tensor.element_bytes())) {
        return refuse(CUDNN_STATUS_BAD_PARAM, "an alignment of %lld bytes",
                      (long long)tensor.alignment);
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_mask(const Descriptor& descriptor) {
    const int64_t mode = descriptor.number(DIAGONAL_BAND_MASK_COMPARISON_MODE);
    if (mode != POINTWISE_CMP_GE && mode != POINTWISE_CMP_GT) {
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "comparison %lld", (long long)mode);
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_heuristic(const Descriptor& descriptor) {
    if (descriptor.number(ENGINEHEUR_MODE) != HEUR_MODE_A) {
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "another mode than A");
    }
    const Attention attention = Attention::of(*descriptor.descriptor(ENGINEHEUR_OPERATION_GRAPH));
    if (offered(attention).empty()) {
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "no engine for this graph");
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_engine(const Descriptor& descriptor) {
    const Attention attention = Attention::of(*descriptor.descriptor(ENGINE_OPERATION_GRAPH));
    const int64_t index = descriptor.number(ENGINE_GLOBAL_INDEX);
    if (!exists(index, attention)) {
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "engine %lld", (long long)index);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_finalized(const Descriptor& descriptor) {
    const int missing = missing_attribute(descriptor);
    if (missing != 0) {
        return refuse(CUDNN_STATUS_BAD_PARAM, "attribute %d is missing", missing);
    }
    switch (descriptor.kind) {
        case KIND_TENSOR: return check_tensor(descriptor);
        case KIND_DIAGONAL_BAND_MASK: return check_mask(descriptor);
        case KIND_SDPA_FWD:
        case KIND_SDPA_BWD: return check(descriptor);
        case KIND_ENGINEHEUR: return check_heuristic(descriptor);
        case KIND_ENGINE: return check_engine(descriptor);
        default: return CUDNN_STATUS_SUCCESS;
    }
}

}  // namespace emulated
