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

// D = epilogue(alpha op(A) op(B) + beta C), summed in f32 in the order of k.
void multiply(const Problem& problem, const Operands& operands);

}  // namespace emulated
