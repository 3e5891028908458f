// What a kernel's shared object and the emulated driver agree on.
#pragma once

#include <cstddef>

// Changes whenever a field of SimtKernel does.
constexpr int SIMT_VERSION = 1;

// The description of a kernel, as the symbol simt_kernel_NAME. The size of a block that
// __launch_bounds__ allows, where there is one, is the symbol simt_threads_max_NAME.
struct SimtKernel {
    int version;
    int argument_count;
    const int* argument_bytes;
    const bool* argument_is_pointer;
    void (*run)(const unsigned* grid, const unsigned* block, size_t shared_bytes, void** arguments);
};
