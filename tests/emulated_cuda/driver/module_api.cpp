// Modules and functions, as the driver's functions.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "../emulated_cuda.h"
#include "../image.h"
#include "module.h"
#include "registry.h"

namespace emulated {

static Registry<CUmodule, Module>& modules() {
    static auto* const registry = new Registry<CUmodule, Module>;
    return *registry;
}

static Registry<CUfunction, Function>& functions() {
    static auto* const registry = new Registry<CUfunction, Function>;
    return *registry;
}

std::shared_ptr<Module> find_module(CUmodule handle) { return modules().find(handle); }
std::shared_ptr<Function> find_function(CUfunction handle) { return functions().find(handle); }

// Loads a shared object from memory. Null, with a line of explanation, where that fails.
static void* load(const std::string& shared_object) {
    const int file = memfd_create("kernel", MFD_CLOEXEC);
    if (file < 0) {
        return nullptr;
    }
    size_t written = 0;
    while (written < shared_object.size()) {
        const char* rest = shared_object.data() + written;
        const ssize_t count = write(file, rest, shared_object.size() - written);
        if (count <= 0) {
            close(file);
            return nullptr;
        }
        written += size_t(count);
    }
    const std::string path = "/proc/self/fd/" + std::to_string(file);
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        fprintf(stderr, "emulated CUDA: cannot load a kernel: %s\n", dlerror());
    }
    // The file stays open: the linker recognises a library by its path, which must not be reused.
    return library;
}

// Code runs on devices of the same major version and the same or a newer minor one.
static bool runs_here(int architecture) {
    return architecture / 10 == COMPUTE_CAPABILITY_MAJOR &&
           architecture % 10 <= COMPUTE_CAPABILITY_MINOR;
}

CUDA_API CUresult cuModuleLoadData(CUmodule* handle, const void* bytes) {
    Context* context = current_context();
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    Image image;
    if (bytes == nullptr || !decode(static_cast<const char*>(bytes), image)) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    if (!runs_here(image.architecture)) {
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    auto module = std::make_shared<Module>();
    module->context = context;
    module->library = load(image.shared_object);
    if (module->library == nullptr) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    *handle = modules().add(module);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuModuleUnload(CUmodule handle) {
    return modules().remove(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUDA_API CUresult cuModuleGetFunction(CUfunction* handle, CUmodule module_handle,
                                      const char* name) {
    const std::shared_ptr<Module> module = modules().find(module_handle);
    if (module == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const std::string text = name;
    void* symbol = dlsym(module->library, ("simt_kernel_" + text).c_str());
    if (symbol == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    auto function = std::make_shared<Function>();
    function->module = module;
    function->name = text;
    function->kernel = static_cast<const SimtKernel*>(symbol);
    if (function->kernel->version != SIMT_VERSION) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    void* threads_max = dlsym(module->library, ("simt_threads_max_" + text).c_str());
    if (threads_max != nullptr) {
        function->threads_max = *static_cast<const int*>(threads_max);
    }
    *handle = functions().add(function);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
    const std::shared_ptr<Function> function = functions().find(handle);
    if (function == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (attribute == FUNCTION_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        return value >= -1 && value <= 100 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    const bool possible = value >= 0 && value <= SHARED_BYTES_OPT_IN;
    if (attribute != FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES || !possible) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    function->dynamic_shared_max = value;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction handle) {
    const std::shared_ptr<Function> function = functions().find(handle);
    if (function == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    constexpr int version = COMPUTE_CAPABILITY_MAJOR * 10 + COMPUTE_CAPABILITY_MINOR;
    switch (attribute) {
        case FUNCTION_MAX_THREADS_PER_BLOCK: *value = function->threads_max; break;
        case FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = function->dynamic_shared_max; break;
        case FUNCTION_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = -1; break;
        case FUNCTION_PTX_VERSION:
        case FUNCTION_BINARY_VERSION: *value = version; break;
        case FUNCTION_NUM_REGS: *value = 32; break;
        case FUNCTION_SHARED_SIZE_BYTES:
        case FUNCTION_CONST_SIZE_BYTES:
        case FUNCTION_LOCAL_SIZE_BYTES:
        case FUNCTION_CACHE_MODE_CA: *value = 0; break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

}  // namespace emulated
