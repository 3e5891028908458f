// Making, filling, finalizing and asking descriptors.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "../driver/registry.h"
#include "api.h"
#include "engines.h"

using namespace emulated;

namespace emulated {

static thread_local char last_error[256];

cudnnStatus_t refuse(cudnnStatus_t status, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

Registry<void*, Descriptor>& descriptors() {
    static Registry<void*, Descriptor> all;
    return all;
}

}  // namespace emulated

CUDA_API size_t cudnnGetVersion() {
    const char* version = getenv("EMULATED_CUDNN_VERSION");
    return version == nullptr ? 92801 : strtoull(version, nullptr, 10);
}

CUDA_API void cudnnGetLastErrorString(char* message, size_t bytes) {
    if (message != nullptr && bytes > 0) {
        snprintf(message, bytes, "%s", last_error);
        last_error[0] = 0;
    }
}

CUDA_API const char* cudnnGetErrorString(cudnnStatus_t status) {
    switch (status) {
        case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
        case CUDNN_STATUS_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
        case CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED: return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
        case CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH: return "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH";
        case CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE: return "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE";
        case CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER:
            return "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER";
        case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
        case CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE: return "CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE";
        case CUDNN_STATUS_NOT_SUPPORTED_LAYOUT: return "CUDNN_STATUS_NOT_SUPPORTED_LAYOUT";
        case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
        default: return int(status) / 1000 == 2 ? "CUDNN_STATUS_BAD_PARAM" : "CUDNN_STATUS";
    }
}

CUDA_API cudnnStatus_t cudnnBackendCreateDescriptor(int kind, void** descriptor) {
    if (descriptor == nullptr) {
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no place for the descriptor");
    }
    if (!is_known_kind(kind)) {
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "descriptors of kind %d", kind);
    }
    *descriptor = descriptors().add(std::make_shared<Descriptor>(kind));
    return CUDNN_STATUS_SUCCESS;
}

CUDA_API cudnnStatus_t cudnnBackendDestroyDescriptor(void* handle) {
    const bool known = descriptors().remove(handle) != nullptr;
    return known ? CUDNN_STATUS_SUCCESS
                 : refuse(CUDNN_STATUS_BAD_PARAM, "a descriptor that does not exist");
}

static size_t element_bytes(int type) {
    switch (type) {
        case TYPE_BOOLEAN: return 1;
        case TYPE_DATA_TYPE:
        case TYPE_HEUR_MODE:
        case TYPE_KNOB_TYPE:
        case TYPE_POINTWISE_MODE: return 4;
        default: return 8;
    }
}

static int64_t element(const void* elements, size_t index, int type) {
    int64_t value = 0;
    const size_t bytes = element_bytes(type);
    memcpy(&value, static_cast<const char*>(elements) + index * bytes, bytes);
    return value;
}

// The descriptors that an attribute refers to must be complete, and of the right kind.
static cudnnStatus_t read_references(Values& values, const AttributeRule& rule, size_t count,
                                     const void* elements) {
    for (size_t i = 0; i < count; i++) {
        const auto referred = descriptors().find(static_cast<void* const*>(elements)[i]);
        if (referred == nullptr) {
            return refuse(CUDNN_STATUS_BAD_PARAM, "attribute %d refers to no descriptor",
                          rule.attribute);
        }
        if (!referred->finalized) {
            return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "attribute %d", rule.attribute);
        }
        if (rule.refers_to != 0 && referred->kind != rule.refers_to) {
            return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "attribute %d is of kind %d",
                          rule.attribute, referred->kind);
        }
        values.descriptors.push_back(referred);
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_attribute(const AttributeRule* rule, const Descriptor& descriptor,
                                     int attribute, int type, int64_t count) {
    if (rule == nullptr) {
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "kind %d has no attribute %d", descriptor.kind,
                      attribute);
    }
    if (type != rule->type) {
        return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "attribute %d is not of type %d",
                      attribute, type);
    }
    if (count < 0 || size_t(count) > rule->count_max) {
        return refuse(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "%lld elements of attribute %d",
                      (long long)count, attribute);
    }
    return CUDNN_STATUS_SUCCESS;
}

CUDA_API cudnnStatus_t cudnnBackendSetAttribute(void* handle, int attribute, int type,
                                                int64_t count, const void* elements) {
    const auto descriptor = descriptors().find(handle);
    if (descriptor == nullptr || (elements == nullptr && count > 0)) {
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor or no elements");
    }
    if (descriptor->finalized) {
        return refuse(CUDNN_STATUS_NOT_INITIALIZED, "the descriptor is finalized");
    }
    const AttributeRule* rule = find_rule(descriptor->kind, attribute);
    const cudnnStatus_t status = check_attribute(rule, *descriptor, attribute, type, count);
    if (status != CUDNN_STATUS_SUCCESS) {
        return status;
    }
    if (rule->read_only || size_t(count) < rule->count_min) {
        return refuse(CUDNN_STATUS_BAD_PARAM, "attribute %d, %lld elements", attribute,
                      (long long)count);
    }
    Values values;
    if (type == TYPE_BACKEND_DESCRIPTOR) {
        const cudnnStatus_t read = read_references(values, *rule, size_t(count), elements);
        if (read != CUDNN_STATUS_SUCCESS) {
            return read;
        }
    } else {
        for (size_t i = 0; i < size_t(count); i++) {
            values.numbers.push_back(element(elements, i, type));
        }
    }
    descriptor->attributes[attribute] = values;
    return CUDNN_STATUS_SUCCESS;
}

// A plan's workspace is known once it is complete.
static cudnnStatus_t finish_plan(Descriptor& plan) {
    const Configuration configuration = configuration_of(plan);
    const int64_t bytes = workspace_bytes(configuration, attention_of(plan));
    if (bytes < 0) {
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "engine %lld has no kernel with these knobs",
                      (long long)configuration.engine);
    }
    plan.attributes[EXECUTION_PLAN_WORKSPACE_SIZE].numbers = {bytes};
    return CUDNN_STATUS_SUCCESS;
}

CUDA_API cudnnStatus_t cudnnBackendFinalize(void* handle) {
    const auto descriptor = descriptors().find(handle);
    if (descriptor == nullptr) {
        return refuse(CUDNN_STATUS_BAD_PARAM, "a descriptor that does not exist");
    }
    const cudnnStatus_t status = check_finalized(*descriptor);
    if (status != CUDNN_STATUS_SUCCESS) {
        return status;
    }
    if (descriptor->kind == KIND_EXECUTION_PLAN) {
        const cudnnStatus_t finished = finish_plan(*descriptor);
        if (finished != CUDNN_STATUS_SUCCESS) {
            return finished;
        }
    }
    descriptor->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

static std::shared_ptr<Descriptor> finalized(int kind) {
    const auto descriptor = std::make_shared<Descriptor>(kind);
    descriptor->finalized = true;
    return descriptor;
}

// Keeps what the library made itself, and no caller destroys.
static void keep(std::shared_ptr<Descriptor> descriptor) {
    static std::mutex mutex;
    static std::vector<std::shared_ptr<Descriptor>> all;
    std::lock_guard<std::mutex> lock(mutex);
    all.push_back(std::move(descriptor));
}

// Fills the configurations that the caller made.
static void fill(Descriptor& to, const Configuration& configuration, const Descriptor& heuristic) {
    const auto engine = finalized(KIND_ENGINE);
    engine->attributes[ENGINE_OPERATION_GRAPH] =
        heuristic.attributes.at(ENGINEHEUR_OPERATION_GRAPH);
    engine->attributes[ENGINE_GLOBAL_INDEX].numbers = {configuration.engine};
    keep(engine);
    to.attributes[ENGINECFG_ENGINE].descriptors = {engine};
    for (const auto& [type, value] : configuration.knobs) {
        const auto choice = finalized(KIND_KNOB_CHOICE);
        choice->attributes[KNOB_CHOICE_KNOB_TYPE].numbers = {type};
        choice->attributes[KNOB_CHOICE_KNOB_VALUE].numbers = {value};
        keep(choice);
        to.attributes[ENGINECFG_KNOB_CHOICES].descriptors.push_back(choice);
    }
    to.finalized = true;
}

static cudnnStatus_t get_results(const Descriptor& heuristic, int64_t requested, int64_t* count,
                                 void* const* elements) {
    const auto graph = heuristic.descriptor(ENGINEHEUR_OPERATION_GRAPH);
    const std::vector<Configuration> found = offered(Attention::of(*graph));
    *count = std::min(requested, int64_t(found.size()));
    for (int64_t i = 0; i < *count; i++) {
        const auto to = descriptors().find(elements[i]);
        if (to == nullptr || to->kind != KIND_ENGINECFG || to->finalized) {
            return refuse(CUDNN_STATUS_BAD_PARAM, "result %lld is no new configuration",
                          (long long)i);
        }
        fill(*to, found[size_t(i)], heuristic);
    }
    return CUDNN_STATUS_SUCCESS;
}

CUDA_API cudnnStatus_t cudnnBackendGetAttribute(void* handle, int attribute, int type,
                                                int64_t requested, int64_t* count,
                                                void* elements) {
    const auto descriptor = descriptors().find(handle);
    if (descriptor == nullptr || count == nullptr || elements == nullptr) {
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor, count or elements");
    }
    if (!descriptor->finalized) {
        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "attribute %d is asked", attribute);
    }
    const AttributeRule* rule = find_rule(descriptor->kind, attribute);
    const cudnnStatus_t status = check_attribute(rule, *descriptor, attribute, type, requested);
    if (status != CUDNN_STATUS_SUCCESS) {
        return status;
    }
    if (attribute == ENGINEHEUR_RESULTS) {
        return get_results(*descriptor, requested, count, static_cast<void* const*>(elements));
    }
    if (type == TYPE_BACKEND_DESCRIPTOR || !descriptor->has(attribute)) {
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "asking for attribute %d", attribute);
    }
    const std::vector<int64_t>& numbers = descriptor->numbers(attribute);
    *count = std::min(requested, int64_t(numbers.size()));
    for (size_t i = 0; i < size_t(*count); i++) {
        const size_t bytes = element_bytes(type);
        memcpy(static_cast<char*>(elements) + i * bytes, &numbers[i], bytes);
    }
    return CUDNN_STATUS_SUCCESS;
}
