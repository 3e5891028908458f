// Sums of the squares of weights and of their last AdamW update, which is computed from the weights
// and both moments after it.
//
// The update is f32 as in adamw; squares and sums are f64, as in gradient_norm.
#include "common.cuh"

constexpr int THREADS = 256;

DEV double square(float value) { return double(value) * double(value); }

// Two sums of a thread.
struct Squares {
    double weights;
    double update;
};

// The factors of every element's update: what is lost to decay, and the learning rate by the first
// correction, both by what decay leaves of a weight.
struct Factors {
    float decay;
    float rate;
    float root_correction;
    float epsilon;
};

DEV void add(Squares& sums, float weight, float first, float second, const Factors& factors) {
    const float root = sqrtf(second) * factors.root_correction + factors.epsilon;
    sums.weights += square(weight);
    sums.update += square(factors.decay * weight + factors.rate * first / root);
}

// Writes each block's sums to partials (2, blocks): of the weights, then of the update. One element
// a thread: packs of four do not fit into registers, beside what division and root call.
//
// Grid: half the number of partials. Block: 256.
KERNEL void __launch_bounds__(THREADS)
update_partials(double* __restrict__ partials, const float* __restrict__ weights,
                const float* __restrict__ first_moments, const float* __restrict__ second_moments,
                i64 elements, float decay, float rate, float root_correction, float epsilon) {
    const Factors factors = {decay, rate, root_correction, epsilon};
    Squares sums = {};
    for (i64 i = grid_index(); i < elements; i += grid_threads()) {
        add(sums, weights[i], first_moments[i], second_moments[i], factors);
    }
    const double of_weights = block_sum<THREADS>(sums.weights);
    const double of_update = block_sum<THREADS>(sums.update);
    if (threadIdx.x == 0) {
        partials[blockIdx.x] = of_weights;
        partials[gridDim.x + blockIdx.x] = of_update;
    }
}
EXPORT_KERNEL(update_partials)
