// What the emulated libcuda exports to the other emulated libraries besides the driver's interface.
#pragma once

#include <cstddef>
#include <functional>

#include "cuda_abi.h"

namespace emulated {

// Appends work to a stream of the current context. `run` is called by the stream's thread.
CUDA_API CUresult emulated_cuda_enqueue(CUstream stream, const char* name,
                                        std::function<void()> run);

// Ends the process with a message unless the bytes lie within one allocation.
CUDA_API void emulated_cuda_check_range(const char* what, const void* address, size_t bytes);

// Whether the bytes lie within one allocation.
CUDA_API bool emulated_cuda_is_device_memory(const void* address, size_t bytes);

// The device of the current context, as the machine numbers it; -1 without a context.
CUDA_API int emulated_cuda_physical_device();

// Prints a line that begins with "emulated CUDA: " and aborts: for what would corrupt memory or
// hang on a real device.
CUDA_API void emulated_cuda_violation(const char* format, ...)
    __attribute__((noreturn, format(printf, 1, 2)));

}  // namespace emulated
