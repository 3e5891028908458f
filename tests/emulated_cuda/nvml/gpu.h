// What an emulated GPU tells of itself, and the faults that a test has planted.
#pragma once

#include <string>

#include "types.h"

namespace emulated {

struct Gpu {
    int number;
};

// Seconds since the library was initialized.
double seconds();

// Starts the clock of `seconds`.
void start_clock();

// The GPU of this number on the machine; null where there is none.
Gpu* gpu_at(int number);

// The value that EMULATED_NVML plants for a GPU by now, as in "1:throttled=64@2"; `fallback`
// without one.
double planted(const Gpu* gpu, const std::string& what, double fallback);

// The same by another clock than that of `seconds`.
double planted_at(double now, const Gpu* gpu, const std::string& what, double fallback);

// What every call about a GPU answers: one that has fallen off the bus tells nothing.
nvmlReturn_t answer(const Gpu* gpu);

}  // namespace emulated
