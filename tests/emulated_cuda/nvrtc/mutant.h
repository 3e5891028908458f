// A deliberate error in a kernel, for tests of the tests.
#pragma once

#include "program.h"

namespace emulated {

// With EMULATED_CUDA_MUTANT=FILE:NAME, replaces a text of the source or of a header by another one.
// Ends the process where the text does not occur exactly once.
void apply_mutant(Program& program);

// Ends the process if there is a mutant: that a kernel does not compile shows nothing.
void refuse_failed_mutant(const std::string& log);

}  // namespace emulated
