// Which attributes each kind of descriptor has, and of which type.
#include <algorithm>
#include <iterator>

#include "descriptor.h"

namespace emulated {

constexpr bool REQUIRED = true;
constexpr bool OPTIONAL = false;
constexpr bool WRITABLE = false;
constexpr bool READ_ONLY = true;

// A single reference that is required.
constexpr AttributeRule refers(int kind, int attribute, int refers_to, bool required = REQUIRED) {
    return {kind, attribute, TYPE_BACKEND_DESCRIPTOR, 1, 1, required, WRITABLE, refers_to};
}

constexpr AttributeRule one(int kind, int attribute, int type, bool required = REQUIRED) {
    return {kind, attribute, type, 1, 1, required, WRITABLE, 0};
}

const AttributeRule RULES[] = {
    one(KIND_TENSOR, TENSOR_DATA_TYPE, TYPE_DATA_TYPE),
    {KIND_TENSOR, TENSOR_DIMENSIONS, TYPE_INT64, 4, 4, REQUIRED, WRITABLE, 0},
    {KIND_TENSOR, TENSOR_STRIDES, TYPE_INT64, 4, 4, REQUIRED, WRITABLE, 0},
    one(KIND_TENSOR, TENSOR_UNIQUE_ID, TYPE_INT64),
    one(KIND_TENSOR, TENSOR_BYTE_ALIGNMENT, TYPE_INT64),
    one(KIND_TENSOR, TENSOR_IS_VIRTUAL, TYPE_BOOLEAN, OPTIONAL),
    one(KIND_TENSOR, TENSOR_IS_BY_VALUE, TYPE_BOOLEAN, OPTIONAL),

    refers(KIND_DIAGONAL_BAND_MASK, DIAGONAL_BAND_MASK_X, KIND_TENSOR),
    refers(KIND_DIAGONAL_BAND_MASK, DIAGONAL_BAND_MASK_B, KIND_TENSOR),
    refers(KIND_DIAGONAL_BAND_MASK, DIAGONAL_BAND_MASK_Y, KIND_TENSOR),
    one(KIND_DIAGONAL_BAND_MASK, DIAGONAL_BAND_MASK_COMPARISON_MODE, TYPE_POINTWISE_MODE),

    refers(KIND_SDPA_FWD, SDPA_FWD_Q, KIND_TENSOR),
    refers(KIND_SDPA_FWD, SDPA_FWD_K, KIND_TENSOR),
    refers(KIND_SDPA_FWD, SDPA_FWD_V, KIND_TENSOR),
    refers(KIND_SDPA_FWD, SDPA_FWD_O, KIND_TENSOR),
    refers(KIND_SDPA_FWD, SDPA_FWD_STATS, KIND_TENSOR, OPTIONAL),
    refers(KIND_SDPA_FWD, SDPA_FWD_SCALE, KIND_TENSOR, OPTIONAL),
    refers(KIND_SDPA_FWD, SDPA_FWD_SUBGRAPH, KIND_OPERATIONGRAPH, OPTIONAL),
    one(KIND_SDPA_FWD, SDPA_FWD_SUBGRAPH_INPUT_UID, TYPE_INT64, OPTIONAL),
    one(KIND_SDPA_FWD, SDPA_FWD_SUBGRAPH_OUTPUT_UID, TYPE_INT64, OPTIONAL),

    refers(KIND_SDPA_BWD, SDPA_BWD_Q, KIND_TENSOR),
    refers(KIND_SDPA_BWD, SDPA_BWD_K, KIND_TENSOR),
    refers(KIND_SDPA_BWD, SDPA_BWD_V, KIND_TENSOR),
    refers(KIND_SDPA_BWD, SDPA_BWD_O, KIND_TENSOR),
    refers(KIND_SDPA_BWD, SDPA_BWD_STATS, KIND_TENSOR),
    refers(KIND_SDPA_BWD, SDPA_BWD_DO, KIND_TENSOR),
    refers(KIND_SDPA_BWD, SDPA_BWD_DQ, KIND_TENSOR),
    refers(KIND_SDPA_BWD, SDPA_BWD_DK, KIND_TENSOR),
    refers(KIND_SDPA_BWD, SDPA_BWD_DV, KIND_TENSOR),
    refers(KIND_SDPA_BWD, SDPA_BWD_SCALE, KIND_TENSOR, OPTIONAL),
    refers(KIND_SDPA_BWD, SDPA_BWD_SUBGRAPH, KIND_OPERATIONGRAPH, OPTIONAL),
    one(KIND_SDPA_BWD, SDPA_BWD_SUBGRAPH_INPUT_UID, TYPE_INT64, OPTIONAL),
    one(KIND_SDPA_BWD, SDPA_BWD_SUBGRAPH_OUTPUT_UID, TYPE_INT64, OPTIONAL),

    one(KIND_OPERATIONGRAPH, OPERATIONGRAPH_HANDLE, TYPE_HANDLE, OPTIONAL),
    refers(KIND_OPERATIONGRAPH, OPERATIONGRAPH_OPS, 0),

    one(KIND_ENGINEHEUR, ENGINEHEUR_MODE, TYPE_HEUR_MODE),
    refers(KIND_ENGINEHEUR, ENGINEHEUR_OPERATION_GRAPH, KIND_OPERATIONGRAPH),
    {KIND_ENGINEHEUR, ENGINEHEUR_RESULTS, TYPE_BACKEND_DESCRIPTOR, 0, 64, OPTIONAL, READ_ONLY,
     KIND_ENGINECFG},

    refers(KIND_ENGINE, ENGINE_OPERATION_GRAPH, KIND_OPERATIONGRAPH),
    one(KIND_ENGINE, ENGINE_GLOBAL_INDEX, TYPE_INT64),

    one(KIND_KNOB_CHOICE, KNOB_CHOICE_KNOB_TYPE, TYPE_KNOB_TYPE),
    one(KIND_KNOB_CHOICE, KNOB_CHOICE_KNOB_VALUE, TYPE_INT64),

    refers(KIND_ENGINECFG, ENGINECFG_ENGINE, KIND_ENGINE),
    {KIND_ENGINECFG, ENGINECFG_KNOB_CHOICES, TYPE_BACKEND_DESCRIPTOR, 0, 32, OPTIONAL, WRITABLE,
     KIND_KNOB_CHOICE},

    one(KIND_EXECUTION_PLAN, EXECUTION_PLAN_HANDLE, TYPE_HANDLE),
    refers(KIND_EXECUTION_PLAN, EXECUTION_PLAN_ENGINE_CONFIG, KIND_ENGINECFG),
    {KIND_EXECUTION_PLAN, EXECUTION_PLAN_WORKSPACE_SIZE, TYPE_INT64, 1, 1, OPTIONAL, READ_ONLY, 0},

    {KIND_VARIANT_PACK, VARIANT_PACK_UNIQUE_IDS, TYPE_INT64, 1, 64, REQUIRED, WRITABLE, 0},
    {KIND_VARIANT_PACK, VARIANT_PACK_DATA_POINTERS, TYPE_VOID_PTR, 1, 64, REQUIRED, WRITABLE, 0},
    one(KIND_VARIANT_PACK, VARIANT_PACK_WORKSPACE, TYPE_VOID_PTR, OPTIONAL),
};

const AttributeRule* find_rule(int kind, int attribute) {
    const auto found = std::find_if(std::begin(RULES), std::end(RULES), [=](const auto& rule) {
        return rule.kind == kind && rule.attribute == attribute;
    });
    return found == std::end(RULES) ? nullptr : found;
}

bool is_known_kind(int kind) {
    return std::any_of(std::begin(RULES), std::end(RULES),
                       [=](const auto& rule) { return rule.kind == kind; });
}

int missing_attribute(const Descriptor& descriptor) {
    for (const AttributeRule& rule : RULES) {
        if (rule.kind == descriptor.kind && rule.required && !descriptor.has(rule.attribute)) {
            return rule.attribute;
        }
    }
    return 0;
}

}  // namespace emulated
