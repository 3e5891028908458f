// Settings of the emulated device, from environment variables.
#include "settings.h"

#include <cstdlib>

#include "../emulated_cuda.h"

namespace emulated {

size_t setting(const char* name, size_t fallback) {
    const char* text = getenv(name);
    if (text == nullptr || *text == '\0') {
        return fallback;
    }
    char* end = nullptr;
    const unsigned long long number = strtoull(text, &end, 10);
    if (*end != '\0') {
        emulated_cuda_violation("%s is \"%s\", which is no number", name, text);
    }
    return size_t(number);
}

}  // namespace emulated
