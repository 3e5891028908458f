// A matrix product as a whole: what is multiplied and what happens to the result.
#pragma once

#include "types.h"

namespace emulated {

struct Problem {
    Descriptor descriptor;
    Layout a;
    Layout b;
    Layout c;
    Layout d;

    size_t m() const { return d.rows; }
    size_t n() const { return d.cols; }
    size_t k() const { return descriptor.transa == CUBLAS_OP_N ? a.cols : a.rows; }

    bool has_bias() const;
    bool writes_aux() const;
    bool reads_aux() const;
    bool has_gelu() const;
    // Of aux, from the first to the last element.
    size_t aux_bytes() const;
    // A number that differs for different problems; pointers do not count.
    uint64_t key() const;
};

// Whether cuBLASLt can compute it at all: INVALID_VALUE for what contradicts itself, NOT_SUPPORTED
// for what has no algorithm.
cublasStatus_t check(const Problem& problem);

}  // namespace emulated
