// Settings of the emulated device, from environment variables.
#pragma once

#include <cstddef>

namespace emulated {

// The number in an environment variable, or `fallback` where it is not set.
size_t setting(const char* name, size_t fallback);

}  // namespace emulated
