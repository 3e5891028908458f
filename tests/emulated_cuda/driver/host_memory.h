// Page-locked memory of the host. Copies from and to it are truly asynchronous.
#pragma once

#include <cstddef>

namespace emulated {

// Whether the bytes are page-locked. Ends the process where only their start is.
bool is_page_locked(const char* what, const void* address, size_t bytes);

// Ends the process where a pointer that should be the host's lies in device memory.
void check_host_pointer(const char* what, const void* address);

}  // namespace emulated
