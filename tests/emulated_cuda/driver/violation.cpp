// Violations: what would corrupt memory or hang on a real device ends the process here.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "../emulated_cuda.h"

CUDA_API void emulated::emulated_cuda_violation(const char* format, ...) {
    char text[500];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "emulated CUDA: %s\n", text);
    fflush(stderr);
    abort();
}
