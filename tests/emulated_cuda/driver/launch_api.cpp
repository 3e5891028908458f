// cuLaunchKernel. Arguments are copied at the call; pointers among them must be device memory, at
// the call and again when the kernel starts. After the kernel, the guards around what they point to
// are checked.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "../emulated_cuda.h"
#include "host_memory.h"
#include "memory.h"
#include "module.h"

namespace emulated {

// One kernel runs at a time: the state of a kernel's fibers and shared memory is static.
static std::mutex& kernel_mutex() {
    static auto* const mutex = new std::mutex;
    return *mutex;
}

struct Shape {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
};

struct alignas(16) ArgumentBytes {
    char bytes[16];
};

// One launch, with its own copy of the arguments.
class Launch {
public:
    Launch(std::shared_ptr<Function> function, const Shape& shape, void** parameters)
        : function(std::move(function)), shape(shape) {
        what = "kernel " + this->function->name;
        copy_arguments(parameters);
        check_pointers();
    }

    void run() {
        std::lock_guard<std::mutex> lock(kernel_mutex());
        check_pointers();
        std::vector<void*> pointers;
        for (std::vector<ArgumentBytes>& argument : arguments) {
            pointers.push_back(argument.data());
        }
        pointers.push_back(nullptr);
        const SimtKernel& kernel = *function->kernel;
        kernel.run(shape.grid, shape.block, shape.shared_bytes, pointers.data());
        check_guards_of_pointers();
    }

    const char* name() const { return what.c_str(); }

private:
    void copy_arguments(void** parameters) {
        const SimtKernel& kernel = *function->kernel;
        for (int i = 0; i < kernel.argument_count; i++) {
            const size_t bytes = size_t(kernel.argument_bytes[i]);
            std::vector<ArgumentBytes> copy((bytes + 15) / 16);
            memcpy(copy.data(), parameters[i], bytes);
            arguments.push_back(std::move(copy));
        }
    }

    // The value of a pointer argument; 0 for a null pointer and for other arguments.
    uint64_t pointer_at(int index) const {
        uint64_t value = 0;
        if (function->kernel->argument_is_pointer[index]) {
            memcpy(&value, arguments[size_t(index)].data(), sizeof value);
        }
        return value;
    }

    void check_pointers() const {
        for (int i = 0; i < function->kernel->argument_count; i++) {
            const uint64_t address = pointer_at(i);
            if (address == 0 || is_page_locked(name(), reinterpret_cast<void*>(address), 1)) {
                continue;
            }
            const std::string argument = what + ", argument " + std::to_string(i);
            check_range(argument.c_str(), address, 0);
        }
    }

    void check_guards_of_pointers() const {
        for (int i = 0; i < function->kernel->argument_count; i++) {
            const uint64_t address = pointer_at(i);
            if (address != 0) {
                check_guards(name(), address);
            }
        }
    }

    std::shared_ptr<Function> function;
    Shape shape;
    std::string what;
    std::vector<std::vector<ArgumentBytes>> arguments;
};

static bool within_limits(const Shape& shape) {
    const unsigned grid_max[] = {2147483647, 65535, 65535};
    const unsigned block_max[] = {1024, 1024, 64};
    for (int i = 0; i < 3; i++) {
        if (shape.grid[i] < 1 || shape.grid[i] > grid_max[i]) {
            return false;
        }
        if (shape.block[i] < 1 || shape.block[i] > block_max[i]) {
            return false;
        }
    }
    return true;
}

static bool fits(const Function& function, const Shape& shape) {
    const unsigned threads = shape.block[0] * shape.block[1] * shape.block[2];
    return threads <= unsigned(function.threads_max) &&
           shape.shared_bytes <= unsigned(function.dynamic_shared_max);
}

// Whether this is the launch that EMULATED_CUDA_FAIL_LAUNCH names, as in "adamw:3": the third of a
// kernel.
static bool is_to_fail(const std::string& kernel) {
    static const char* const setting = getenv("EMULATED_CUDA_FAIL_LAUNCH");
    static std::atomic<int> launches{0};
    const std::string name = kernel + ":";
    if (setting == nullptr || strncmp(setting, name.c_str(), name.size()) != 0) {
        return false;
    }
    return ++launches == atoi(setting + name.size());
}

static CUresult launch(CUfunction handle, const Shape& shape, CUstream stream_handle,
                       void** parameters) {
    const std::shared_ptr<Function> function = find_function(handle);
    const std::shared_ptr<Stream> stream = find_stream(stream_handle);
    if (current_context() == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (function == nullptr || stream == nullptr ||
        function->module->context != stream->context) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const bool arguments_missing = parameters == nullptr && function->kernel->argument_count > 0;
    if (arguments_missing || !within_limits(shape) || !fits(*function, shape)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (is_to_fail(function->name)) {
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    }
    const auto launch = std::make_shared<Launch>(function, shape, parameters);
    submit(stream, launch->name(), [launch] { launch->run(); });
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                 unsigned grid_z, unsigned block_x, unsigned block_y,
                                 unsigned block_z, unsigned shared_bytes, CUstream stream,
                                 void** parameters, void** extra) {
    if (extra != nullptr) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    const Shape shape = {
        {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
    return launch(function, shape, stream, parameters);
}

}  // namespace emulated
