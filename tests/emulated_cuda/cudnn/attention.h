// An attention, or its gradient, as a graph describes it.
#pragma once

#include <vector>

#include "tensor.h"

namespace emulated {

// Scores of a query and a later key are replaced.
struct Mask {
    bool present = false;
    // CMP_GE keeps the diagonal, CMP_GT does not.
    int comparison = POINTWISE_CMP_GE;
    // One number of the host.
    Tensor replacement;
};

struct Attention {
    bool is_backward = false;
    Tensor q, k, v, o, stats, scale, doutput, dq, dk, dv;
    bool has_stats = false;
    bool has_scale = false;
    Mask mask;

    // Of an operation graph that was finalized.
    static Attention of(const Descriptor& graph);

    // What has to be in a variant pack.
    std::vector<Tensor*> tensors();
    int64_t sequences() const { return q.dimensions[0]; }
    int64_t heads() const { return q.dimensions[1]; }
    int64_t queries() const { return q.dimensions[2]; }
    int64_t columns() const { return q.dimensions[3]; }
    int64_t key_heads() const { return k.dimensions[1]; }
    int64_t keys() const { return k.dimensions[2]; }
    // Query heads of a key head.
    int64_t group() const { return heads() / key_heads(); }
};

// Whether the dimensions agree and the tensors are of the types that there are engines for.
cudnnStatus_t check(const Descriptor& operation);

// Numbers of the host, read when the plan is executed.
struct Numbers {
    float scale;
    float masked_score;
};

// In which order the sums of dq are added.
enum class Order { Fixed, Any };

// Tensors have their addresses. Probabilities and gradients of scores are narrowed before they are
// multiplied, as tensor cores take them.
void compute(const Attention& attention, Numbers numbers, Order order);

}  // namespace emulated
