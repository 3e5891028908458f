// What an emulated GPU tells of itself, and the faults that a test has planted.
#include "gpu.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace emulated {

using Clock = std::chrono::steady_clock;

static Clock::time_point& started() {
    static Clock::time_point time = Clock::now();
    return time;
}

void start_clock() { started() = Clock::now(); }

double seconds() { return std::chrono::duration<double>(Clock::now() - started()).count(); }

static int setting(const char* name, int fallback) {
    const char* text = getenv(name);
    return text == nullptr || *text == '\0' ? fallback : atoi(text);
}

Gpu* gpu_at(int number) {
    constexpr int GPUS_MAX = 64;
    static Gpu gpus[GPUS_MAX];
    if (number < 0 || number >= setting("EMULATED_CUDA_DEVICES", 1) || number >= GPUS_MAX) {
        return nullptr;
    }
    gpus[number].number = number;
    return &gpus[number];
}

[[noreturn]] static void refuse(const std::string& entry) {
    fprintf(stderr, "emulated NVML: EMULATED_NVML has \"%s\", expected GPU:WHAT=NUMBER[@SECONDS]\n",
            entry.c_str());
    abort();
}

double planted(const Gpu* gpu, const std::string& what, double fallback) {
    return planted_at(seconds(), gpu, what, fallback);
}

double planted_at(double now, const Gpu* gpu, const std::string& what, double fallback) {
    const char* text = getenv("EMULATED_NVML");
    std::istringstream entries(text == nullptr ? "" : text);
    std::string entry;
    double found = fallback;
    while (std::getline(entries, entry, ',')) {
        int number = 0;
        char name[32];
        double value = 0;
        double since = 0;
        if (sscanf(entry.c_str(), "%d:%31[a-z_]=%lf@%lf", &number, name, &value, &since) < 3) {
            refuse(entry);
        }
        if (number == gpu->number && name == what && now >= since) {
            found = value;
        }
    }
    return found;
}

nvmlReturn_t answer(const Gpu* gpu) {
    return planted(gpu, "lost", 0) > 0 ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

}  // namespace emulated
