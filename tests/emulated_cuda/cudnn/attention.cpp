// What a graph of attention consists of, and which are refused.
#include "attention.h"

namespace emulated {

static Tensor tensor_at(const Descriptor& operation, int attribute) {
    return Tensor::of(*operation.descriptor(attribute));
}

static Mask mask_of(const Descriptor& operation, int subgraph) {
    Mask mask;
    if (!operation.has(subgraph)) {
        return mask;
    }
    const auto band = operation.descriptor(subgraph)->descriptor(OPERATIONGRAPH_OPS);
    mask.present = true;
    mask.comparison = int(band->number(DIAGONAL_BAND_MASK_COMPARISON_MODE));
    mask.replacement = tensor_at(*band, DIAGONAL_BAND_MASK_B);
    return mask;
}

static Attention forward_of(const Descriptor& operation) {
    Attention attention;
    attention.q = tensor_at(operation, SDPA_FWD_Q);
    attention.k = tensor_at(operation, SDPA_FWD_K);
    attention.v = tensor_at(operation, SDPA_FWD_V);
    attention.o = tensor_at(operation, SDPA_FWD_O);
    attention.has_stats = operation.has(SDPA_FWD_STATS);
    if (attention.has_stats) {
        attention.stats = tensor_at(operation, SDPA_FWD_STATS);
    }
    attention.has_scale = operation.has(SDPA_FWD_SCALE);
    if (attention.has_scale) {
        attention.scale = tensor_at(operation, SDPA_FWD_SCALE);
    }
    attention.mask = mask_of(operation, SDPA_FWD_SUBGRAPH);
    return attention;
}

static Attention backward_of(const Descriptor& operation) {
    Attention attention;
    attention.is_backward = true;
    attention.q = tensor_at(operation, SDPA_BWD_Q);
    attention.k = tensor_at(operation, SDPA_BWD_K);
    attention.v = tensor_at(operation, SDPA_BWD_V);
    attention.o = tensor_at(operation, SDPA_BWD_O);
    attention.doutput = tensor_at(operation, SDPA_BWD_DO);
    attention.dq = tensor_at(operation, SDPA_BWD_DQ);
    attention.dk = tensor_at(operation, SDPA_BWD_DK);
    attention.dv = tensor_at(operation, SDPA_BWD_DV);
    attention.has_stats = true;
    attention.stats = tensor_at(operation, SDPA_BWD_STATS);
    attention.has_scale = operation.has(SDPA_BWD_SCALE);
    if (attention.has_scale) {
        attention.scale = tensor_at(operation, SDPA_BWD_SCALE);
    }
    attention.mask = mask_of(operation, SDPA_BWD_SUBGRAPH);
    return attention;
}

static Attention of_operation(const Descriptor& operation) {
    return operation.kind == KIND_SDPA_FWD ? forward_of(operation) : backward_of(operation);
}

Attention Attention::of(const Descriptor& graph) {
    return of_operation(*graph.descriptor(OPERATIONGRAPH_OPS));
}

std::vector<Tensor*> Attention::tensors() {
    std::vector<Tensor*> all = {&q, &k, &v, &o};
    if (has_stats) {
        all.push_back(&stats);
    }
    if (has_scale) {
        all.push_back(&scale);
    }
    if (mask.present) {
        all.push_back(&mask.replacement);
    }
    if (is_backward) {
        all.insert(all.end(), {&doutput, &dq, &dk, &dv});
    }
    return all;
}

using Dimensions = std::array<int64_t, 4>;

static bool has(const Tensor& tensor, Dimensions dimensions) {
    return tensor.dimensions == dimensions;
}

static bool shapes_agree(const Attention& attention) {
    const Dimensions keys = attention.k.dimensions;
    const Dimensions queries = attention.q.dimensions;
    if (keys[0] != queries[0] || keys[3] != queries[3] || queries[1] % keys[1] != 0) {
        return false;
    }
    const bool inputs = has(attention.v, keys) && has(attention.o, queries);
    const Dimensions rows = {queries[0], queries[1], queries[2], 1};
    const bool statistics = !attention.has_stats || has(attention.stats, rows);
    const bool gradients = !attention.is_backward ||
                           (has(attention.doutput, queries) && has(attention.dq, queries) &&
                            has(attention.dk, keys) && has(attention.dv, keys));
    return inputs && statistics && gradients;
}

static bool is_number(const Tensor& tensor) {
    return tensor.by_value && tensor.data_type == DATA_FLOAT && has(tensor, {1, 1, 1, 1});
}

static cudnnStatus_t check_tensors(Attention& attention) {
    for (const Tensor* tensor : attention.tensors()) {
        const bool number = tensor == &attention.scale || tensor == &attention.mask.replacement;
        if (number) {
            if (!is_number(*tensor)) {
                return refuse(CUDNN_STATUS_BAD_PARAM, "tensor %lld is not one number",
                              (long long)tensor->unique_id);
            }
            continue;
        }
        const int expected = tensor == &attention.stats ? DATA_FLOAT : DATA_BFLOAT16;
        if (tensor->data_type != expected) {
            return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "tensor %lld has data type %d",
                          (long long)tensor->unique_id, tensor->data_type);
        }
        if (!tensor->in_memory()) {
            return refuse(CUDNN_STATUS_BAD_PARAM, "tensor %lld is not in memory",
                          (long long)tensor->unique_id);
        }
        if (tensor->strides[3] != 1) {
            return refuse(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "columns of tensor %lld are apart",
                          (long long)tensor->unique_id);
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_ids(Attention& attention) {
    const std::vector<Tensor*> tensors = attention.tensors();
    for (size_t i = 0; i < tensors.size(); i++) {
        for (size_t j = 0; j < i; j++) {
            if (tensors[i]->unique_id == tensors[j]->unique_id) {
                return refuse(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                              "two tensors have the unique id %lld",
                              (long long)tensors[i]->unique_id);
            }
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

// The subgraph turns scores into scores.
static cudnnStatus_t check_subgraph(const Descriptor& operation, const Attention& attention) {
    const bool forward = operation.kind == KIND_SDPA_FWD;
    const int subgraph = forward ? SDPA_FWD_SUBGRAPH : SDPA_BWD_SUBGRAPH;
    const int input = forward ? SDPA_FWD_SUBGRAPH_INPUT_UID : SDPA_BWD_SUBGRAPH_INPUT_UID;
    const int output = forward ? SDPA_FWD_SUBGRAPH_OUTPUT_UID : SDPA_BWD_SUBGRAPH_OUTPUT_UID;
    if (!operation.has(subgraph)) {
        return CUDNN_STATUS_SUCCESS;
    }
    if (!operation.has(input) || !operation.has(output)) {
        return refuse(CUDNN_STATUS_BAD_PARAM, "a subgraph needs the ids of its input and output");
    }
    const auto band = operation.descriptor(subgraph)->descriptor(OPERATIONGRAPH_OPS);
    if (band->kind != KIND_DIAGONAL_BAND_MASK) {
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "the subgraph is not a mask");
    }
    const Dimensions scores = {attention.sequences(), attention.heads(), attention.queries(),
                               attention.keys()};
    for (const auto& side : {std::pair{DIAGONAL_BAND_MASK_X, input},
                             std::pair{DIAGONAL_BAND_MASK_Y, output}}) {
        const Tensor tensor = tensor_at(*band, side.first);
        const bool is_scores = tensor.is_virtual && tensor.data_type == DATA_FLOAT &&
                               tensor.dimensions == scores;
        if (!is_scores || tensor.unique_id != operation.number(side.second)) {
            return refuse(CUDNN_STATUS_BAD_PARAM, "tensor %lld is not the subgraph's scores",
                          (long long)tensor.unique_id);
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check(const Descriptor& operation) {
    Attention attention = of_operation(operation);
    if (!shapes_agree(attention)) {
        return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "dimensions do not agree");
    }
    for (const cudnnStatus_t status : {check_tensors(attention), check_ids(attention),
                                       check_subgraph(operation, attention)}) {
        if (status != CUDNN_STATUS_SUCCESS) {
            return status;
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

}  // namespace emulated
