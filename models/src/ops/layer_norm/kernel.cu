// LayerNorm: norm.cuh has the kernels.
#include "norm.cuh"

struct LayerNorm {
    static constexpr bool HAS_BIAS = true;

    struct Stats {
        float mean;
        // 1 / standard deviation.
        float inverse;
    };

    struct Row {
        Stats stats;
        float mean_g;
        float mean_gh;
    };

    DEV Stats stats(const Element* x, float epsilon, int width) {
        const float mean = row_mean(x, width, [](float value) { return value; });
        // Of the squares of differences, which loses no digits where the mean is large.
        const float variance = row_mean(x, width, [mean](float value) {
            const float difference = value - mean;
            return difference * difference;
        });
        return {mean, 1.0f / sqrtf(variance + epsilon)};
    }

    DEV float normalised(const Stats& stats, float x) { return (x - stats.mean) * stats.inverse; }

    // Of g, and of g (x - mean).
    static constexpr int SUMS = 2;

    DEV void add(float (&sums)[SUMS], const Stats& stats, float g, float x) {
        sums[0] += g;
        sums[1] += g * (x - stats.mean);
    }

    DEV Row row(const Stats& stats, const float (&sums)[SUMS], int width) {
        return {stats, sums[0] / width, sums[1] * stats.inverse / width};
    }

    DEV float input_gradient(const Row& row, float g, float h) {
        return row.stats.inverse * (g - row.mean_g - h * row.mean_gh);
    }
};

KERNEL void __launch_bounds__(FORWARD_THREADS)
layer_norm_forward(Element* __restrict__ y, LayerNorm::Stats* __restrict__ stats,
                   const Element* __restrict__ x, const Element* __restrict__ weight,
                   const Element* __restrict__ bias, float epsilon, int rows, int width) {
    norm_forward<LayerNorm>(y, stats, x, weight, bias, epsilon, rows, width);
}
EXPORT_KERNEL(layer_norm_forward)

KERNEL void __launch_bounds__(BACKWARD_THREADS_MAX, 1)
layer_norm_backward(Element* __restrict__ dx, float* __restrict__ weight_partials,
                    float* __restrict__ bias_partials, float* __restrict__ dx_partials,
                    const Element* __restrict__ dy, const Element* __restrict__ x,
                    const LayerNorm::Stats* __restrict__ stats,
                    const Element* __restrict__ weight, int rows, int width, int accumulate) {
    norm_backward<LayerNorm>(dx, weight_partials, bias_partials, dx_partials, dy, x, stats,
                             weight, rows, width, accumulate);
}
EXPORT_KERNEL(layer_norm_backward)
