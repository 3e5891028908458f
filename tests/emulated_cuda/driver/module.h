// Modules and their kernels.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "../cuda_abi.h"
#include "../simt/launch_abi.h"
#include "context.h"

namespace emulated {

// A loaded shared object. It stays loaded, because operations of streams may still use it.
struct Module {
    Context* context = nullptr;
    void* library = nullptr;
};

struct Function {
    std::shared_ptr<Module> module;
    std::string name;
    const SimtKernel* kernel = nullptr;
    int threads_max = THREADS_PER_BLOCK_MAX;
    std::atomic<int> dynamic_shared_max{SHARED_BYTES_DEFAULT};
};

std::shared_ptr<Module> find_module(CUmodule handle);
std::shared_ptr<Function> find_function(CUfunction handle);

}  // namespace emulated
