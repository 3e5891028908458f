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

// Writes each block's sums to partials (2, blocks): of the weights, then of the update. Four
// elements a thread, then the last one to three by a thread each; the slices start at multiples of
// 16 bytes.
//
// Grid: half the number of partials. Block: 256.
KERNEL void __launch_bounds__(THREADS)
update_partials(double* __restrict__ partials, const float* __restrict__ weights,
                const float* __restrict__ first_moments, const float* __restrict__ second_moments,
                i64 elements, float decay, float rate, float root_correction, float epsilon) {
    const Factors factors = {decay, rate, root_correction, epsilon};
    // Two chains of additions of each sum: four would not fit into registers.
    Squares sums[2] = {};
    const i64 whole = elements / 4 * 4;
    for (i64 start = grid_index() * 4; start < whole; start += grid_threads() * 4) {
        const Vector<4> weight = load_floats<4>(weights + start);
        const Vector<4> first = load_floats<4>(first_moments + start);
        const Vector<4> second = load_floats<4>(second_moments + start);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            add(sums[i % 2], weight.at[i], first.at[i], second.at[i], factors);
        }
    }
    for (i64 i = whole + grid_index(); i < elements; i += grid_threads()) {
        add(sums[0], weights[i], first_moments[i], second_moments[i], factors);
    }
    const double of_weights = block_sum<THREADS>(sums[0].weights + sums[1].weights);
    const double of_update = block_sum<THREADS>(sums[0].update + sums[1].update);
    if (threadIdx.x == 0) {
        partials[blockIdx.x] = of_weights;
        partials[gridDim.x + blockIdx.x] = of_update;
    }
}
EXPORT_KERNEL(update_partials)
