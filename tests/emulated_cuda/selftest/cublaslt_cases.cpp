// cuBLASLt: what it refuses. Its results are those of models/src/ops/cuda_tests/matmul.rs.
#include "../cublaslt/types.h"

#include "cuda.h"
#include "harness.h"

using emulated::Algorithm;
using emulated::HeuristicResult;

extern "C" {
int cublasLtCreate(void** handle);
int cublasLtMatmulDescCreate(void** descriptor, int compute_type, int scale_type);
int cublasLtMatmulDescSetAttribute(void* descriptor, int attribute, const void* value, size_t size);
int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
int cublasLtMatmulPreferenceCreate(void** preference);
int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value,
                                         size_t size);
int cublasLtMatmulAlgoGetHeuristic(void* handle, void* descriptor, void* a, void* b, void* c,
                                   void* d, void* preference, int requested,
                                   HeuristicResult* results, int* returned);
int cublasLtMatmul(void* handle, void* descriptor, const void* alpha, const void* a, void* a_layout,
                   const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                   void* d, void* d_layout, const Algorithm* algorithm, void* workspace,
                   size_t workspace_bytes, CUstream stream);
}

// A column-major matrix of bf16 on the device.
struct Matrix {
    Matrix(size_t rows, size_t cols, size_t ld) : ld(ld), device(allocate(ld * cols * 2)) {
        CHECK_EQUAL(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, rows, cols, int64_t(ld)), 0);
    }

    void* pointer() const { return reinterpret_cast<void*>(device); }

    size_t ld;
    CUdeviceptr device;
    void* layout = nullptr;
};

// A product of 32 by 16 over 64, the left operand transposed, with everything it needs.
struct Product {
    explicit Product(uint32_t epilogue = EPILOGUE_DEFAULT)
        : a(64, 32, 72), b(64, 16, 80), c(32, 16, 40), d(32, 16, 34), bias(32, 1, 32),
          aux(32, 16, 40) {
        CHECK_EQUAL(cublasLtCreate(&handle), 0);
        CHECK_EQUAL(cublasLtMatmulDescCreate(&descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F), 0);
        set(DESCRIPTOR_TRANSA, int32_t(1));
        set(DESCRIPTOR_TRANSB, int32_t(0));
        set(DESCRIPTOR_EPILOGUE, epilogue);
        set(DESCRIPTOR_BIAS_POINTER, bias.pointer());
        set(DESCRIPTOR_EPILOGUE_AUX_POINTER, aux.pointer());
        set(DESCRIPTOR_EPILOGUE_AUX_LD, int64_t(aux.ld));
        CHECK_EQUAL(cublasLtMatmulPreferenceCreate(&preference), 0);
        const uint64_t bytes = 1 << 20;
        const int attribute = PREFERENCE_MAX_WORKSPACE_BYTES;
        CHECK_EQUAL(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &bytes, 8), 0);
        workspace = reinterpret_cast<void*>(allocate(bytes));
        workspace_bytes = bytes;
    }

    template <class T>
    void set(int attribute, T value) {
        CHECK_EQUAL(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof value), 0);
    }

    int choose() {
        HeuristicResult results[4];
        int returned = 0;
        const int status =
            cublasLtMatmulAlgoGetHeuristic(handle, descriptor, a.layout, b.layout, c.layout,
                                           d.layout, preference, 4, results, &returned);
        if (status == 0) {
            CHECK(returned > 0);
            algorithm = results[0].algorithm;
        }
        return status;
    }

    int run() {
        return cublasLtMatmul(handle, descriptor, &alpha, a.pointer(), a.layout, b.pointer(),
                              b.layout, &beta, c.pointer(), c.layout, d.pointer(), d.layout,
                              &algorithm, workspace, workspace_bytes, nullptr);
    }

    Matrix a, b, c, d, bias, aux;
    float alpha = 0.5f;
    float beta = 2.0f;
    void* handle = nullptr;
    void* descriptor = nullptr;
    void* preference = nullptr;
    void* workspace = nullptr;
    size_t workspace_bytes = 0;
    Algorithm algorithm = {};
};

static void* layout(int type, size_t rows, size_t cols, size_t ld) {
    void* created = nullptr;
    CHECK_EQUAL(cublasLtMatrixLayoutCreate(&created, type, rows, cols, int64_t(ld)), 0);
    return created;
}

PASSES(wrong_layouts_are_refused) {
    open_device();
    Product product;
    const int type = CUDA_R_16BF;
    CHECK_EQUAL(product.choose(), 0);
    void* const right = product.a.layout;
    product.a.layout = layout(type, 64, 33, 64);
    CHECK_EQUAL(product.choose(), CUBLAS_STATUS_INVALID_VALUE);
    product.a.layout = layout(type, 64, 32, 63);
    CHECK_EQUAL(product.choose(), CUBLAS_STATUS_INVALID_VALUE);
    product.a.layout = layout(type, 64, 32, 65);
    CHECK_EQUAL(product.choose(), CUBLAS_STATUS_NOT_SUPPORTED);
    product.a.layout = layout(CUDA_R_32F, 64, 32, 64);
    CHECK_EQUAL(product.choose(), CUBLAS_STATUS_NOT_SUPPORTED);
    product.a.layout = right;
    product.set(DESCRIPTOR_TRANSA, int32_t(0));
    CHECK_EQUAL(product.choose(), CUBLAS_STATUS_INVALID_VALUE);
    const int32_t number = 0;
    const int attribute = DESCRIPTOR_BIAS_POINTER;
    CHECK_EQUAL(cublasLtMatmulDescSetAttribute(product.descriptor, attribute, &number, 4),
                CUBLAS_STATUS_INVALID_VALUE);
}

PASSES(wrong_algorithms_are_refused) {
    open_device();
    Product product;
    CHECK_EQUAL(product.choose(), 0);
    const Algorithm right = product.algorithm;
    product.algorithm = Algorithm();
    CHECK_EQUAL(product.run(), CUBLAS_STATUS_INVALID_VALUE);
    product.algorithm = right;
    CHECK_EQUAL(product.run(), 0);
    product.set(DESCRIPTOR_EPILOGUE, uint32_t(EPILOGUE_BIAS));
    CHECK_EQUAL(product.run(), CUBLAS_STATUS_INVALID_VALUE);
}

PASSES(wrong_pointers_are_refused) {
    open_device();
    Product product(EPILOGUE_GELU_AUX_BIAS);
    CHECK_EQUAL(product.choose(), 0);
    void* const workspace = product.workspace;
    product.workspace = nullptr;
    CHECK_EQUAL(product.run(), CUBLAS_STATUS_INVALID_VALUE);
    product.workspace = workspace;
    product.workspace_bytes = 100;
    CHECK_EQUAL(product.run(), CUBLAS_STATUS_INVALID_VALUE);
    product.workspace_bytes = 1 << 20;
    product.d.device += 16;
    // Aligned to 16 bytes, but the preference says 256.
    CHECK_EQUAL(product.run(), CUBLAS_STATUS_INVALID_VALUE);
    product.d.device -= 16;
    product.set(DESCRIPTOR_BIAS_POINTER, static_cast<void*>(nullptr));
    CHECK_EQUAL(product.run(), CUBLAS_STATUS_INVALID_VALUE);
    product.set(DESCRIPTOR_BIAS_POINTER, product.bias.pointer());
    product.set(DESCRIPTOR_EPILOGUE_AUX_POINTER, static_cast<void*>(nullptr));
    CHECK_EQUAL(product.run(), CUBLAS_STATUS_INVALID_VALUE);
    product.set(DESCRIPTOR_EPILOGUE_AUX_LD, int64_t(36));
    CHECK_EQUAL(product.choose(), CUBLAS_STATUS_INVALID_VALUE);
}

ABORTS(product_behind_an_allocation, "cublasLtMatmul, B: ") {
    open_device();
    Product product;
    CHECK_EQUAL(product.choose(), 0);
    product.b.device = allocate(64);
    product.run();
}
