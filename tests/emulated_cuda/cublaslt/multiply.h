// The product itself.
#pragma once

#include "problem.h"

namespace emulated {

struct Operands {
    float alpha;
    float beta;
    const void* a;
    const void* b;
    const void* c;
    void* d;
};

// D = epilogue(alpha op(A) op(B) + beta C), summed in f32 in the order of k, which starts at
// `first_k` and continues at 0.
void multiply(const Problem& problem, const Operands& operands, size_t first_k);

}  // namespace emulated
