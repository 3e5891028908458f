// The heuristic and the product.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "../cuda_abi.h"
#include "../emulated_cuda.h"
#include "multiply.h"
#include "problem.h"

using namespace emulated;

constexpr uint64_t ALGORITHM_MAGIC = 0x4d4c544d554c4154u;
// The algorithm that the heuristic puts first needs so much, where that is allowed.
constexpr uint64_t WORKSPACE_BYTES = 32 << 10;
constexpr uint32_t ALIGNMENT_MIN = 16;

constexpr uint64_t ALGORITHMS_MAX = 8;
// Time that the last algorithm is faster than the others, with EMULATED_CUDA_ALGORITHMS.
constexpr std::chrono::milliseconds SLOWNESS(3);

// Number of algorithms for a product: EMULATED_CUDA_ALGORITHMS, or 0 where it is not set.
static uint64_t configured_algorithms() {
    const char* text = getenv("EMULATED_CUDA_ALGORITHMS");
    return text == nullptr ? 0 : std::min<uint64_t>(strtoull(text, nullptr, 10), ALGORITHMS_MAX);
}

static uint64_t algorithm_count() {
    const uint64_t configured = configured_algorithms();
    return configured == 0 ? 2 : configured;
}

static Algorithm algorithm_for(const Problem& problem, const Preference& preference,
                               uint64_t position, uint64_t workspace_bytes) {
    Algorithm algorithm = {};
    algorithm.magic = ALGORITHM_MAGIC;
    algorithm.problem = problem.key();
    algorithm.workspace_bytes = workspace_bytes;
    algorithm.position = position;
    memcpy(algorithm.alignment, preference.alignment, sizeof algorithm.alignment);
    return algorithm;
}

// Pointers may be as unaligned as the preference says, but not less than to 16 bytes.
static bool alignment_supported(const Preference& preference) {
    return std::all_of(std::begin(preference.alignment), std::end(preference.alignment),
                       [](uint32_t bytes) { return bytes >= ALIGNMENT_MIN; });
}

static const char* epilogue_name(const Problem& problem) {
    switch (problem.descriptor.epilogue) {
        case EPILOGUE_BIAS: return "BIAS";
        case EPILOGUE_GELU_AUX_BIAS: return "GELU_AUX_BIAS";
        case EPILOGUE_DGELU: return "DGELU";
        default: return "";
    }
}

// Returns whether EMULATED_CUDA_REFUSE_EPILOGUES, names with commas between them, has this one.
static bool epilogue_refused(const Problem& problem) {
    const char* refused = getenv("EMULATED_CUDA_REFUSE_EPILOGUES");
    const std::string name = epilogue_name(problem);
    if (refused == nullptr || name.empty()) {
        return false;
    }
    return ("," + std::string(refused) + ",").find("," + name + ",") != std::string::npos;
}

// Returns whether a variable, as in 512x32x128, is this product's m, n and k.
static bool is_named(const char* variable, const Problem& problem) {
    const char* refused = getenv(variable);
    const std::string own = std::to_string(problem.m()) + "x" + std::to_string(problem.n()) + "x" +
                            std::to_string(problem.k());
    return refused != nullptr && own == refused;
}

static HeuristicResult result_for(const Algorithm& algorithm) {
    HeuristicResult result = {};
    result.algorithm = algorithm;
    result.workspace_bytes = algorithm.workspace_bytes;
    result.state = CUBLAS_STATUS_SUCCESS;
    result.waves = 1.0f;
    return result;
}

// The first algorithm uses a workspace if there may be one, the others none.
CUDA_API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    LightHandle* handle, Descriptor* descriptor, Layout* a, Layout* b, Layout* c, Layout* d,
    Preference* preference, int requested, HeuristicResult* results, int* returned) {
    const bool missing = handle == nullptr || descriptor == nullptr || a == nullptr ||
                         b == nullptr || c == nullptr || d == nullptr || preference == nullptr ||
                         results == nullptr || returned == nullptr;
    if (missing || requested < 1) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *returned = 0;
    const Problem problem = {*descriptor, *a, *b, *c, *d};
    const cublasStatus_t status = check(problem);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    if (!alignment_supported(*preference) || epilogue_refused(problem) ||
        is_named("EMULATED_CUDA_REFUSE_PRODUCT", problem)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    for (uint64_t position = 0; position < algorithm_count(); position++) {
        const uint64_t workspace = position == 0 ? WORKSPACE_BYTES : 0;
        if (workspace > preference->workspace_max || *returned == requested) {
            continue;
        }
        const Algorithm algorithm = algorithm_for(problem, *preference, position, workspace);
        results[(*returned)++] = result_for(algorithm);
    }
    return CUBLAS_STATUS_SUCCESS;
}

// Returns whether an algorithm was chosen for this problem, by this version of the library.
static bool algorithm_suits(const Algorithm& algorithm, const Problem& problem) {
    return algorithm.magic == ALGORITHM_MAGIC && algorithm.problem == problem.key() &&
           algorithm.position < algorithm_count();
}

CUDA_API cublasStatus_t cublasLtMatmulAlgoCheck(LightHandle* handle, Descriptor* descriptor,
                                                Layout* a, Layout* b, Layout* c, Layout* d,
                                                const Algorithm* algorithm,
                                                HeuristicResult* result) {
    const bool missing = handle == nullptr || descriptor == nullptr || a == nullptr ||
                         b == nullptr || c == nullptr || d == nullptr || algorithm == nullptr ||
                         result == nullptr;
    if (missing) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const Problem problem = {*descriptor, *a, *b, *c, *d};
    const cublasStatus_t status = check(problem);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    if (!algorithm_suits(*algorithm, problem)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *result = result_for(*algorithm);
    return CUBLAS_STATUS_SUCCESS;
}

static bool aligned(const void* pointer, uint32_t bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// Returns whether pointers are as aligned as the algorithm was told.
static bool operands_aligned(const Operands& operands, const Algorithm& algorithm) {
    return aligned(operands.a, algorithm.alignment[0]) &&
           aligned(operands.b, algorithm.alignment[1]) &&
           aligned(operands.c, algorithm.alignment[2]) &&
           aligned(operands.d, algorithm.alignment[3]);
}

static bool epilogue_pointers_valid(const Problem& problem) {
    const Descriptor& descriptor = problem.descriptor;
    if (problem.has_bias() && descriptor.bias == nullptr) {
        return false;
    }
    if (problem.writes_aux() || problem.reads_aux()) {
        return descriptor.aux != nullptr && aligned(descriptor.aux, ALIGNMENT_MIN);
    }
    return true;
}

struct Workspace {
    void* pointer;
    size_t bytes;
};

static bool workspace_valid(const Workspace& workspace, const Algorithm& algorithm) {
    if (workspace.bytes > 0 && workspace.pointer == nullptr) {
        return false;
    }
    return workspace.bytes >= algorithm.workspace_bytes &&
           aligned(workspace.pointer, ALIGNMENT_MIN);
}

static void check_memory(const Problem& problem, const Operands& operands,
                         const Workspace& workspace) {
    emulated_cuda_check_range("cublasLtMatmul, A", operands.a, problem.a.bytes());
    emulated_cuda_check_range("cublasLtMatmul, B", operands.b, problem.b.bytes());
    emulated_cuda_check_range("cublasLtMatmul, C", operands.c, problem.c.bytes());
    emulated_cuda_check_range("cublasLtMatmul, D", operands.d, problem.d.bytes());
    if (problem.has_bias()) {
        const size_t bytes = problem.m() * problem.d.element_bytes();
        emulated_cuda_check_range("cublasLtMatmul, bias", problem.descriptor.bias, bytes);
    }
    if (problem.writes_aux() || problem.reads_aux()) {
        const size_t bytes = problem.aux_bytes();
        emulated_cuda_check_range("cublasLtMatmul, aux", problem.descriptor.aux, bytes);
    }
    if (workspace.bytes > 0) {
        emulated_cuda_check_range("cublasLtMatmul, workspace", workspace.pointer, workspace.bytes);
    }
}

// What a real algorithm leaves in its workspace is of no use to anybody.
static void use_workspace(const Workspace& workspace, const Algorithm& algorithm) {
    if (algorithm.workspace_bytes > 0) {
        memset(workspace.pointer, 0xff, algorithm.workspace_bytes);
    }
}

// The k from which an algorithm adds, which only EMULATED_CUDA_ALGORITHMS makes another than 0.
static size_t first_k(const Problem& problem, const Algorithm& algorithm) {
    const bool ordered_alike = configured_algorithms() == 0;
    return ordered_alike ? 0 : problem.k() * algorithm.position / ALGORITHMS_MAX;
}

CUDA_API cublasStatus_t cublasLtMatmul(LightHandle* handle, Descriptor* descriptor,
                                       const void* alpha, const void* a, Layout* a_layout,
                                       const void* b, Layout* b_layout, const void* beta,
                                       const void* c, Layout* c_layout, void* d, Layout* d_layout,
                                       const Algorithm* algorithm, void* workspace_pointer,
                                       size_t workspace_bytes, CUstream stream) {
    const bool missing = handle == nullptr || descriptor == nullptr || alpha == nullptr ||
                         beta == nullptr || a == nullptr || b == nullptr || c == nullptr ||
                         d == nullptr || a_layout == nullptr || b_layout == nullptr ||
                         c_layout == nullptr || d_layout == nullptr || algorithm == nullptr;
    if (missing) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const Problem problem = {*descriptor, *a_layout, *b_layout, *c_layout, *d_layout};
    const cublasStatus_t status = check(problem);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    const Operands operands = {*static_cast<const float*>(alpha), *static_cast<const float*>(beta),
                               a, b, c, d};
    const Workspace workspace = {workspace_pointer, workspace_bytes};
    const Algorithm chosen = *algorithm;
    if (!algorithm_suits(chosen, problem) || !operands_aligned(operands, chosen) ||
        !epilogue_pointers_valid(problem) || !workspace_valid(workspace, chosen)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (is_named("EMULATED_CUDA_REFUSE_START", problem)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    check_memory(problem, operands, workspace);
    const bool slow = chosen.position + 1 < configured_algorithms();
    const CUresult submitted = emulated_cuda_enqueue(stream, "cublasLtMatmul", [=] {
        check_memory(problem, operands, workspace);
        use_workspace(workspace, chosen);
        if (slow) {
            std::this_thread::sleep_for(SLOWNESS);
        }
        multiply(problem, operands, first_k(problem, chosen));
    });
    return submitted == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
