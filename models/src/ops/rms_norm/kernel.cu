// RMSNorm: norm.cuh has the kernels.
#include "norm.cuh"

struct RmsNorm {
    static constexpr bool HAS_BIAS = false;

    struct Stats {
        // 1 / root mean square.
        float inverse;
    };

    struct Row {
        Stats stats;
        float mean_gh;
    };

    DEV Stats stats(const Element* x, float epsilon, int width) {
        const float mean_square = row_mean(x, width, [](float value) { return value * value; });
        return {1.0f / sqrtf(mean_square + epsilon)};
    }

    DEV float normalised(const Stats& stats, float x) { return x * stats.inverse; }

    // Of g x.
    static constexpr int SUMS = 1;

    DEV void add(float (&sums)[SUMS], const Stats&, float g, float x) { sums[0] += g * x; }

    DEV Row row(const Stats& stats, const float (&sums)[SUMS], int width) {
        return {stats, sums[0] * stats.inverse / width};
    }

    DEV float input_gradient(const Row& row, float g, float h) {
        return row.stats.inverse * (g - h * row.mean_gh);
    }
};

KERNEL void __launch_bounds__(FORWARD_THREADS)
rms_norm_forward(Element* __restrict__ y, RmsNorm::Stats* __restrict__ stats,
                 const Element* __restrict__ x, const Element* __restrict__ weight, float epsilon,
                 int rows, int width) {
    norm_forward<RmsNorm>(y, stats, x, weight, nullptr, epsilon, rows, width);
}
EXPORT_KERNEL(rms_norm_forward)

KERNEL void __launch_bounds__(BACKWARD_THREADS_MAX, 1)
rms_norm_backward(Element* __restrict__ dx, float* __restrict__ weight_partials,
                  const Element* __restrict__ dy, const Element* __restrict__ x,
                  const RmsNorm::Stats* __restrict__ stats, const Element* __restrict__ weight,
                  int rows, int width, int accumulate) {
    norm_backward<RmsNorm>(dx, weight_partials, nullptr, nullptr, dy, x, stats, weight, rows,
                           width, accumulate);
}
EXPORT_KERNEL(rms_norm_backward)
