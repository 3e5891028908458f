// The sizes of blocks that __launch_bounds__ allows.
#pragma once

#include <string>

namespace emulated {

// Declarations to append to a source: simt_threads_max_NAME for kernels with __launch_bounds__.
std::string launch_bounds_declarations(const std::string& source);

}  // namespace emulated
