// NCCL's log: which lines it has and where they go is decided by NCCL_DEBUG, NCCL_DEBUG_SUBSYS and
// NCCL_DEBUG_FILE, which are read when the first line is about to be written.
#pragma once

#include <cstdint>

namespace emulated {

// A line belongs to one or more; by default those of Init and Env are written.
constexpr uint32_t LOG_INIT = 1, LOG_NET = 2, LOG_SHM = 4, LOG_ENV = 8, LOG_ALL = ~0u;

// Lines of level INFO and WARN; the text is formatted as by printf.
void log_info(uint32_t subsystems, const char* format, ...) __attribute__((format(printf, 2, 3)));
void log_warning(const char* text);

}  // namespace emulated
