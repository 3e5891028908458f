// Handles, and the execution of plans on a stream.
#include <cstdlib>
#include <cstring>

#include "../emulated_cuda.h"
#include "api.h"

using namespace emulated;

namespace emulated {

static Registry<void*, DnnHandle>& handles() {
    static Registry<void*, DnnHandle> all;
    return all;
}

static std::shared_ptr<Descriptor> engine_of(const Descriptor& plan) {
    return plan.descriptor(EXECUTION_PLAN_ENGINE_CONFIG)->descriptor(ENGINECFG_ENGINE);
}

Attention attention_of(const Descriptor& plan) {
    return Attention::of(*engine_of(plan)->descriptor(ENGINE_OPERATION_GRAPH));
}

Configuration configuration_of(const Descriptor& plan) {
    Configuration configuration = {engine_of(plan)->number(ENGINE_GLOBAL_INDEX), {}};
    const auto described = plan.descriptor(EXECUTION_PLAN_ENGINE_CONFIG);
    for (const auto& choice : described->descriptors(ENGINECFG_KNOB_CHOICES)) {
        const int type = int(choice->number(KNOB_CHOICE_KNOB_TYPE));
        configuration.knobs[type] = choice->number(KNOB_CHOICE_KNOB_VALUE);
    }
    return configuration;
}

// The address of a tensor in a variant pack, or null.
static char* address_of(const Descriptor& pack, int64_t unique_id) {
    const std::vector<int64_t>& ids = pack.numbers(VARIANT_PACK_UNIQUE_IDS);
    const std::vector<int64_t>& pointers = pack.numbers(VARIANT_PACK_DATA_POINTERS);
    for (size_t i = 0; i < ids.size() && i < pointers.size(); i++) {
        if (ids[i] == unique_id) {
            return reinterpret_cast<char*>(pointers[i]);
        }
    }
    return nullptr;
}

static cudnnStatus_t bind(Attention& attention, const Descriptor& pack) {
    for (Tensor* tensor : attention.tensors()) {
        tensor->data = address_of(pack, tensor->unique_id);
        const long long id = tensor->unique_id;
        if (tensor->data == nullptr) {
            return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "tensor %lld has no address", id);
        }
        if (reinterpret_cast<uintptr_t>(tensor->data) % size_t(tensor->alignment) != 0 &&
            tensor->in_memory()) {
            return refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "tensor %lld", id);
        }
        if (tensor->by_value && emulated_cuda_is_device_memory(tensor->data, 1)) {
            emulated_cuda_violation("cudnnBackendExecute: tensor %lld is by value, and its address "
                                    "one of the device", id);
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

static float value_of(const Tensor& tensor) {
    float value;
    memcpy(&value, tensor.data, sizeof value);
    return value;
}

static Numbers numbers_of(const Attention& attention) {
    const float scale = attention.has_scale ? value_of(attention.scale) : 1.0f;
    const float masked = attention.mask.present ? value_of(attention.mask.replacement) : 0.0f;
    return {scale, masked};
}

struct Workspace {
    char* address;
    size_t bytes;
};

static void check_memory(Attention attention, const Workspace& workspace) {
    for (const Tensor* tensor : attention.tensors()) {
        if (tensor->in_memory()) {
            emulated_cuda_check_range("cudnnBackendExecute, a tensor", tensor->data,
                                      tensor->bytes());
        }
    }
    if (workspace.bytes > 0) {
        emulated_cuda_check_range("cudnnBackendExecute, workspace", workspace.address,
                                  workspace.bytes);
    }
}

static Workspace workspace_of(const Descriptor& plan, const Descriptor& pack) {
    const size_t bytes = size_t(plan.number(EXECUTION_PLAN_WORKSPACE_SIZE));
    const bool given = pack.has(VARIANT_PACK_WORKSPACE);
    char* address =
        given ? reinterpret_cast<char*>(pack.number(VARIANT_PACK_WORKSPACE)) : nullptr;
    return {address, bytes};
}

static cudnnStatus_t start(const DnnHandle& handle, const Descriptor& plan,
                           const Descriptor& pack) {
    Attention attention = attention_of(plan);
    const cudnnStatus_t bound = bind(attention, pack);
    if (bound != CUDNN_STATUS_SUCCESS) {
        return bound;
    }
    const Numbers numbers = numbers_of(attention);
    const Order order = order_of_sums(configuration_of(plan));
    const Workspace workspace = workspace_of(plan, pack);
    check_memory(attention, workspace);
    const CUresult submitted = emulated_cuda_enqueue(handle.stream, "cudnnBackendExecute", [=] {
        check_memory(attention, workspace);
        // What a plan leaves in its workspace is of no use to anybody.
        if (workspace.bytes > 0) {
            memset(workspace.address, 0xff, workspace.bytes);
        }
        compute(attention, numbers, order);
    });
    return submitted == CUDA_SUCCESS
               ? CUDNN_STATUS_SUCCESS
               : refuse(CUDNN_STATUS_EXECUTION_FAILED, "the stream does not exist");
}

}  // namespace emulated

CUDA_API cudnnStatus_t cudnnCreate(void** handle) {
    if (handle == nullptr || emulated_cuda_physical_device() < 0) {
        return refuse(CUDNN_STATUS_NOT_INITIALIZED, "no device is current");
    }
    if (getenv("EMULATED_CUDNN_BROKEN") != nullptr) {
        return refuse(CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED, "a part of cuDNN cannot be loaded");
    }
    *handle = handles().add(std::make_shared<DnnHandle>());
    return CUDNN_STATUS_SUCCESS;
}

CUDA_API cudnnStatus_t cudnnDestroy(void* handle) {
    const bool known = handles().remove(handle) != nullptr;
    return known ? CUDNN_STATUS_SUCCESS
                 : refuse(CUDNN_STATUS_BAD_PARAM, "a handle that does not exist");
}

CUDA_API cudnnStatus_t cudnnSetStream(void* handle, CUstream stream) {
    const auto found = handles().find(handle);
    if (found == nullptr) {
        return refuse(CUDNN_STATUS_BAD_PARAM, "a handle that does not exist");
    }
    found->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

CUDA_API cudnnStatus_t cudnnBackendExecute(void* handle, void* plan_handle, void* pack_handle) {
    const auto found = handles().find(handle);
    const auto plan = descriptors().find(plan_handle);
    const auto pack = descriptors().find(pack_handle);
    if (found == nullptr || plan == nullptr || pack == nullptr) {
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no handle, plan or variant pack");
    }
    if (plan->kind != KIND_EXECUTION_PLAN || pack->kind != KIND_VARIANT_PACK) {
        return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "not a plan and a variant pack");
    }
    if (!plan->finalized || !pack->finalized) {
        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "the plan or the variant pack");
    }
    return start(*found, *plan, *pack);
}
