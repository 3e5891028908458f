// cuBLASLt: what it refuses. Its results are those of models/src/ops/cuda_tests/matmul.rs.
#include "../cublaslt/types.h"

#include <cstring>

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

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

// A column-major matrix on the host and on the device, of either type.
struct Matrix {
    Matrix(int type, size_t rows, size_t cols, size_t ld)
        : type(type), ld(ld) {
        for (size_t i = 0; i < ld * cols; i++) {
            const int hundredths = int(i * 2654435761u >> 7) % 200 - 100;
            values.push_back(from_bf16(to_bf16(float(hundredths) / 100)));
        }
        write();
        CHECK_EQUAL(cublasLtMatrixLayoutCreate(&layout, type, rows, cols, int64_t(ld)), 0);
    }

    void write() {
        if (type == CUDA_R_32F) {
            device = upload(values);
            return;
        }
        std::vector<uint16_t> bits;
        for (const float value : values) {
            bits.push_back(to_bf16(value));
        }
        device = upload(bits);
    }

    void* pointer() const { return reinterpret_cast<void*>(device); }

    int type;
    size_t ld;
    std::vector<float> values;
    CUdeviceptr device = 0;
    void* layout = nullptr;
};

// A product with everything it needs.
struct Product {
    Product(int in, int out, bool transa, bool transb, size_t m, size_t n, size_t k,
            uint32_t epilogue)
        : a(in, transa ? k : m, transa ? m : k, (transa ? k : m) + 8),
          b(in, transb ? n : k, transb ? k : n, (transb ? n : k) + 16),
          c(out, m, n, m + 8),
          d(out, m, n, m + 2),
          bias(out, m, 1, m),
          aux(out, m, n, (m + 15) / 8 * 8) {
        CHECK_EQUAL(cublasLtCreate(&handle), 0);
        CHECK_EQUAL(cublasLtMatmulDescCreate(&descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F), 0);
        set(DESCRIPTOR_TRANSA, int32_t(transa));
        set(DESCRIPTOR_TRANSB, int32_t(transb));
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

static Product make_product(uint32_t epilogue = EPILOGUE_DEFAULT, int type = CUDA_R_16BF) {
    return Product(type, type, true, false, 32, 16, 64, epilogue);
}

static void* layout(int type, size_t rows, size_t cols, size_t ld) {
    void* created = nullptr;
    CHECK_EQUAL(cublasLtMatrixLayoutCreate(&created, type, rows, cols, int64_t(ld)), 0);
    return created;
}

PASSES(wrong_layouts_are_refused) {
    open_device();
    Product product = make_product();
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
    Product product = make_product();
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
    Product product = make_product(EPILOGUE_GELU_AUX_BIAS);
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
    Product product = make_product();
    CHECK_EQUAL(product.choose(), 0);
    product.b.device = allocate(64);
    product.run();
}
