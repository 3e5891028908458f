// cuDNN: attention and its gradient against plain sums in double, and what it refuses.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "../cudnn/types.h"
#include "cuda.h"
#include "harness.h"

extern "C" {
int cudnnCreate(void** handle);
int cudnnSetStream(void* handle, CUstream stream);
int cudnnBackendCreateDescriptor(int kind, void** descriptor);
int cudnnBackendDestroyDescriptor(void* descriptor);
int cudnnBackendSetAttribute(void* descriptor, int attribute, int type, int64_t count,
                             const void* elements);
int cudnnBackendGetAttribute(void* descriptor, int attribute, int type, int64_t requested,
                             int64_t* count, void* elements);
int cudnnBackendFinalize(void* descriptor);
int cudnnBackendExecute(void* handle, void* plan, void* pack);
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

// One head, of TOKENS tokens and 8 columns.
constexpr int64_t TOKENS = 37;
constexpr int64_t COLUMNS = 8;
constexpr size_t ELEMENTS = size_t(TOKENS * COLUMNS);

static void* make(int kind) {
    void* descriptor = nullptr;
    CHECK_EQUAL(cudnnBackendCreateDescriptor(kind, &descriptor), CUDNN_STATUS_SUCCESS);
    return descriptor;
}

static int set_integers(void* descriptor, int attribute, std::vector<int64_t> values) {
    return cudnnBackendSetAttribute(descriptor, attribute, TYPE_INT64, int64_t(values.size()),
                                    values.data());
}

static int set_enum(void* descriptor, int attribute, int type, int value) {
    return cudnnBackendSetAttribute(descriptor, attribute, type, 1, &value);
}

static int refer(void* descriptor, int attribute, void* to) {
    return cudnnBackendSetAttribute(descriptor, attribute, TYPE_BACKEND_DESCRIPTOR, 1, &to);
}

static void* done(void* descriptor) {
    CHECK_EQUAL(cudnnBackendFinalize(descriptor), CUDNN_STATUS_SUCCESS);
    return descriptor;
}

// A tensor of one sequence and head that is not complete yet.
static void* tensor(int64_t id, int type, int64_t rows, int64_t columns) {
    void* descriptor = make(KIND_TENSOR);
    CHECK_EQUAL(set_enum(descriptor, TENSOR_DATA_TYPE, TYPE_DATA_TYPE, type), 0);
    CHECK_EQUAL(set_integers(descriptor, TENSOR_DIMENSIONS, {1, 1, rows, columns}), 0);
    const int64_t all = rows * columns;
    CHECK_EQUAL(set_integers(descriptor, TENSOR_STRIDES, {all, all, columns, 1}), 0);
    CHECK_EQUAL(set_integers(descriptor, TENSOR_UNIQUE_ID, {id}), 0);
    CHECK_EQUAL(set_integers(descriptor, TENSOR_BYTE_ALIGNMENT, {4}), 0);
    return descriptor;
}

static void* with_flag(void* descriptor, int attribute) {
    const bool on = true;
    CHECK_EQUAL(cudnnBackendSetAttribute(descriptor, attribute, TYPE_BOOLEAN, 1, &on), 0);
    return descriptor;
}

static void* rows(int64_t id) { return done(tensor(id, DATA_BFLOAT16, TOKENS, COLUMNS)); }
static void* number(int64_t id) {
    return done(with_flag(tensor(id, DATA_FLOAT, 1, 1), TENSOR_IS_BY_VALUE));
}
static void* scores(int64_t id) {
    return done(with_flag(tensor(id, DATA_FLOAT, TOKENS, TOKENS), TENSOR_IS_VIRTUAL));
}

static void* graph_of(void* operation) {
    void* graph = make(KIND_OPERATIONGRAPH);
    CHECK_EQUAL(refer(graph, OPERATIONGRAPH_OPS, operation), 0);
    return done(graph);
}

// Ids of tensors.
enum : int64_t { Q = 1, K, V, O, STATS, SCALE, MASKED, DOUT, DQ, DK, DV, SCORES, MASKED_SCORES };

static void* causal_mask() {
    void* mask = make(KIND_DIAGONAL_BAND_MASK);
    CHECK_EQUAL(refer(mask, DIAGONAL_BAND_MASK_X, scores(SCORES)), 0);
    CHECK_EQUAL(refer(mask, DIAGONAL_BAND_MASK_B, number(MASKED)), 0);
    CHECK_EQUAL(refer(mask, DIAGONAL_BAND_MASK_Y, scores(MASKED_SCORES)), 0);
    const int mode = POINTWISE_CMP_GE;
    CHECK_EQUAL(set_enum(mask, DIAGONAL_BAND_MASK_COMPARISON_MODE, TYPE_POINTWISE_MODE, mode), 0);
    return graph_of(done(mask));
}

static void* stats() { return done(tensor(STATS, DATA_FLOAT, TOKENS, 1)); }

static void* forward_operation() {
    void* operation = make(KIND_SDPA_FWD);
    CHECK_EQUAL(refer(operation, SDPA_FWD_Q, rows(Q)), 0);
    CHECK_EQUAL(refer(operation, SDPA_FWD_K, rows(K)), 0);
    CHECK_EQUAL(refer(operation, SDPA_FWD_V, rows(V)), 0);
    CHECK_EQUAL(refer(operation, SDPA_FWD_O, rows(O)), 0);
    CHECK_EQUAL(refer(operation, SDPA_FWD_STATS, stats()), 0);
    CHECK_EQUAL(refer(operation, SDPA_FWD_SCALE, number(SCALE)), 0);
    CHECK_EQUAL(refer(operation, SDPA_FWD_SUBGRAPH, causal_mask()), 0);
    CHECK_EQUAL(set_integers(operation, SDPA_FWD_SUBGRAPH_INPUT_UID, {SCORES}), 0);
    CHECK_EQUAL(set_integers(operation, SDPA_FWD_SUBGRAPH_OUTPUT_UID, {MASKED_SCORES}), 0);
    return operation;
}

static void* backward_operation() {
    void* operation = make(KIND_SDPA_BWD);
    const std::pair<int, int64_t> tensors[] = {
        {SDPA_BWD_Q, Q},     {SDPA_BWD_K, K},   {SDPA_BWD_V, V},   {SDPA_BWD_O, O},
        {SDPA_BWD_DO, DOUT}, {SDPA_BWD_DQ, DQ}, {SDPA_BWD_DK, DK}, {SDPA_BWD_DV, DV},
    };
    for (const auto& [attribute, id] : tensors) {
        CHECK_EQUAL(refer(operation, attribute, rows(id)), 0);
    }
    CHECK_EQUAL(refer(operation, SDPA_BWD_STATS, stats()), 0);
    CHECK_EQUAL(refer(operation, SDPA_BWD_SCALE, number(SCALE)), 0);
    CHECK_EQUAL(refer(operation, SDPA_BWD_SUBGRAPH, causal_mask()), 0);
    CHECK_EQUAL(set_integers(operation, SDPA_BWD_SUBGRAPH_INPUT_UID, {SCORES}), 0);
    CHECK_EQUAL(set_integers(operation, SDPA_BWD_SUBGRAPH_OUTPUT_UID, {MASKED_SCORES}), 0);
    return done(operation);
}

struct Library {
    Library() {
        open_device();
        CHECK_EQUAL(cudnnCreate(&handle), 0);
        stream = make_stream();
        CHECK_EQUAL(cudnnSetStream(handle, stream), 0);
    }

    // Not complete yet.
    void* plan_of(void* graph, int64_t engine, int64_t tile_m, int64_t tile_n, int64_t stages) {
        void* described = make(KIND_ENGINE);
        CHECK_EQUAL(refer(described, ENGINE_OPERATION_GRAPH, graph), 0);
        CHECK_EQUAL(set_integers(described, ENGINE_GLOBAL_INDEX, {engine}), 0);
        void* configuration = make(KIND_ENGINECFG);
        CHECK_EQUAL(refer(configuration, ENGINECFG_ENGINE, done(described)), 0);
        std::vector<void*> choices;
        for (const auto& [type, value] : {std::pair<int, int64_t>{KNOB_TILE_M, tile_m},
                                          {KNOB_TILE_N, tile_n}, {KNOB_STAGES, stages}}) {
            choices.push_back(make(KIND_KNOB_CHOICE));
            CHECK_EQUAL(
                set_enum(choices.back(), KNOB_CHOICE_KNOB_TYPE, TYPE_KNOB_TYPE, type), 0);
            CHECK_EQUAL(set_integers(choices.back(), KNOB_CHOICE_KNOB_VALUE, {value}), 0);
            done(choices.back());
        }
        CHECK_EQUAL(cudnnBackendSetAttribute(configuration, ENGINECFG_KNOB_CHOICES,
                                             TYPE_BACKEND_DESCRIPTOR, 3, choices.data()), 0);
        void* plan = make(KIND_EXECUTION_PLAN);
        CHECK_EQUAL(
            cudnnBackendSetAttribute(plan, EXECUTION_PLAN_HANDLE, TYPE_HANDLE, 1, &handle), 0);
        CHECK_EQUAL(refer(plan, EXECUTION_PLAN_ENGINE_CONFIG, done(configuration)), 0);
        return plan;
    }

    void* handle = nullptr;
    CUstream stream = nullptr;
};

static int64_t workspace_of(void* plan) {
    int64_t bytes = -1;
    int64_t count = 0;
    CHECK_EQUAL(cudnnBackendGetAttribute(plan, EXECUTION_PLAN_WORKSPACE_SIZE, TYPE_INT64, 1, &count,
                                         &bytes), 0);
    return bytes;
}

static std::vector<uint16_t> random_rows(unsigned seed) {
    std::vector<uint16_t> values;
    for (size_t i = 0; i < ELEMENTS; i++) {
        const int hundredths = int((i + seed * 7919) * 2654435761u >> 7) % 400 - 200;
        values.push_back(to_bf16(float(hundredths) / 100));
    }
    return values;
}

// What is computed from and to: all tensors on the device.
struct Memory {
    Memory() {
        for (int64_t id = Q; id <= DV; id++) {
            addresses[id] = allocate(ELEMENTS * 2 + TOKENS * 4);
        }
        for (const int64_t id : {Q, K, V, DOUT}) {
            addresses[id] = upload(random_rows(unsigned(id)));
        }
    }

    void* pack(std::vector<int64_t> ids, int64_t workspace_bytes) {
        ids.insert(ids.end(), {SCALE, MASKED});
        std::vector<void*> pointers;
        for (const int64_t id : ids) {
            pointers.push_back(id == SCALE    ? static_cast<void*>(&scale)
                               : id == MASKED ? static_cast<void*>(&masked)
                                              : reinterpret_cast<void*>(addresses[id]));
        }
        void* pack = make(KIND_VARIANT_PACK);
        CHECK_EQUAL(set_integers(pack, VARIANT_PACK_UNIQUE_IDS, ids), 0);
        CHECK_EQUAL(cudnnBackendSetAttribute(pack, VARIANT_PACK_DATA_POINTERS, TYPE_VOID_PTR,
                                             int64_t(pointers.size()), pointers.data()), 0);
        void* workspace = reinterpret_cast<void*>(allocate(size_t(workspace_bytes) + 1));
        CHECK_EQUAL(cudnnBackendSetAttribute(pack, VARIANT_PACK_WORKSPACE, TYPE_VOID_PTR, 1,
                                             &workspace), 0);
        return done(pack);
    }

    std::vector<uint16_t> rows_of(int64_t id) {
        return download<uint16_t>(addresses[id], ELEMENTS);
    }

    CUdeviceptr addresses[14] = {};
    float scale = 0.5f;
    float masked = -INFINITY;
};

static const std::vector<int64_t> FORWARD = {Q, K, V, O, STATS};
static const std::vector<int64_t> BACKWARD = {Q, K, V, O, STATS, DOUT, DQ, DK, DV};

static void run_forward(Library& library, Memory& memory) {
    void* plan = done(library.plan_of(graph_of(done(forward_operation())), 8, 0, 0, 0));
    void* pack = memory.pack(FORWARD, workspace_of(plan));
    CHECK_EQUAL(cudnnBackendExecute(library.handle, plan, pack), 0);
    CHECK_EQUAL(cuStreamSynchronize(library.stream), CUDA_SUCCESS);
}

static std::vector<uint16_t> run_backward(Library& library, Memory& memory, int64_t stages) {
    void* graph = graph_of(backward_operation());
    void* plan = done(library.plan_of(graph, 13, 2, 1, stages));
    void* pack = memory.pack(BACKWARD, workspace_of(plan));
    CHECK_EQUAL(cudnnBackendExecute(library.handle, plan, pack), 0);
    CHECK_EQUAL(cuStreamSynchronize(library.stream), CUDA_SUCCESS);
    return memory.rows_of(DQ);
}

using Matrix = std::vector<double>;

static Matrix exact(const std::vector<uint16_t>& values) {
    Matrix matrix;
    for (const uint16_t value : values) {
        matrix.push_back(from_bf16(value));
    }
    return matrix;
}

static double product(const Matrix& a, int64_t row, const Matrix& b, int64_t other) {
    double sum = 0;
    for (int64_t column = 0; column < COLUMNS; column++) {
        sum += a[size_t(row * COLUMNS + column)] * b[size_t(other * COLUMNS + column)];
    }
    return sum;
}

// Causal softmax of q k^T / 2, a row for each query; zero for later keys.
static std::vector<Matrix> probabilities(Memory& memory) {
    const Matrix q = exact(memory.rows_of(Q));
    const Matrix k = exact(memory.rows_of(K));
    std::vector<Matrix> all;
    for (int64_t query = 0; query < TOKENS; query++) {
        Matrix row(TOKENS, 0.0);
        double sum = 0;
        for (int64_t key = 0; key <= query; key++) {
            sum += row[size_t(key)] = std::exp(0.5 * product(q, query, k, key));
        }
        std::for_each(row.begin(), row.end(), [=](double& value) { value /= sum; });
        all.push_back(row);
    }
    return all;
}

// Within a share of the root mean square of all.
static void check_close(const std::vector<uint16_t>& found, const Matrix& expected, double bound) {
    double squares = 0;
    double worst = 0;
    for (size_t i = 0; i < ELEMENTS; i++) {
        squares += expected[i] * expected[i];
        worst = std::max(worst, std::abs(from_bf16(found[i]) - expected[i]));
    }
    const double error = worst / std::sqrt(squares / double(ELEMENTS));
    fprintf(stderr, "     largest error %.4f of the root mean square\n", error);
    CHECK(error < bound);
}

PASSES(cudnn_forward_is_a_causal_softmax) {
    Library library;
    Memory memory;
    run_forward(library, memory);
    const Matrix v = exact(memory.rows_of(V));
    const std::vector<Matrix> p = probabilities(memory);
    Matrix expected(ELEMENTS, 0.0);
    for (size_t i = 0; i < ELEMENTS; i++) {
        for (size_t key = 0; key < size_t(TOKENS); key++) {
            expected[i] += p[i / COLUMNS][key] * v[key * COLUMNS + i % COLUMNS];
        }
    }
    check_close(memory.rows_of(O), expected, 0.02);
}

PASSES(cudnn_gradient_of_values_and_queries) {
    Library library;
    Memory memory;
    run_forward(library, memory);
    const std::vector<uint16_t> dq = run_backward(library, memory, 4);
    const Matrix dout = exact(memory.rows_of(DOUT));
    const Matrix v = exact(memory.rows_of(V));
    const Matrix k = exact(memory.rows_of(K));
    const std::vector<Matrix> p = probabilities(memory);
    Matrix dv(ELEMENTS, 0.0);
    Matrix dq_expected(ELEMENTS, 0.0);
    for (int64_t query = 0; query < TOKENS; query++) {
        const Matrix& row = p[size_t(query)];
        double mean = 0;
        for (int64_t key = 0; key <= query; key++) {
            mean += row[size_t(key)] * product(dout, query, v, key);
        }
        for (int64_t key = 0; key <= query; key++) {
            const double score =
                0.5 * row[size_t(key)] * (product(dout, query, v, key) - mean);
            for (int64_t column = 0; column < COLUMNS; column++) {
                const size_t at_query = size_t(query * COLUMNS + column);
                const size_t at_key = size_t(key * COLUMNS + column);
                dv[at_key] += row[size_t(key)] * dout[at_query];
                dq_expected[at_query] += score * k[at_key];
            }
        }
    }
    check_close(memory.rows_of(DV), dv, 0.05);
    // The gradient of a score is a difference, and what is subtracted is from the rounded output.
    check_close(dq, dq_expected, 0.1);
}

PASSES(cudnn_engines_in_a_fixed_order_repeat_their_bits) {
    Library library;
    Memory memory;
    run_forward(library, memory);
    CHECK(run_backward(library, memory, 4) == run_backward(library, memory, 4));
    const std::vector<uint16_t> first = run_backward(library, memory, 0);
    bool differs = false;
    for (int i = 0; i < 50 && !differs; i++) {
        differs = first != run_backward(library, memory, 0);
    }
    CHECK(differs);
}

PASSES(cudnn_attributes_are_checked) {
    open_device();
    void* descriptor = tensor(1, DATA_BFLOAT16, TOKENS, COLUMNS);
    const int64_t one = 1;
    CHECK_EQUAL(cudnnBackendSetAttribute(descriptor, TENSOR_UNIQUE_ID, TYPE_BOOLEAN, 1, &one),
                CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
    CHECK_EQUAL(set_integers(descriptor, SDPA_FWD_Q, {1}), CUDNN_STATUS_NOT_SUPPORTED);
    CHECK_EQUAL(set_integers(descriptor, TENSOR_DIMENSIONS, {1, 1}), CUDNN_STATUS_BAD_PARAM);
    void* operation = make(KIND_SDPA_FWD);
    CHECK_EQUAL(refer(operation, SDPA_FWD_Q, descriptor), CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
    CHECK_EQUAL(cudnnBackendFinalize(operation), CUDNN_STATUS_BAD_PARAM);
    done(descriptor);
    CHECK_EQUAL(set_integers(descriptor, TENSOR_UNIQUE_ID, {2}), CUDNN_STATUS_NOT_INITIALIZED);
    CHECK_EQUAL(refer(operation, SDPA_FWD_SUBGRAPH, descriptor),
                CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
}

PASSES(cudnn_operations_are_checked) {
    open_device();
    void* operation = forward_operation();
    void* shorter = done(tensor(K, DATA_BFLOAT16, TOKENS - 1, COLUMNS));
    CHECK_EQUAL(refer(operation, SDPA_FWD_K, shorter), 0);
    CHECK_EQUAL(cudnnBackendFinalize(operation), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
    CHECK_EQUAL(refer(operation, SDPA_FWD_K, rows(Q)), 0);
    CHECK_EQUAL(cudnnBackendFinalize(operation), CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES);
    CHECK_EQUAL(refer(operation, SDPA_FWD_K, done(tensor(K, DATA_FLOAT, TOKENS, COLUMNS))), 0);
    CHECK_EQUAL(cudnnBackendFinalize(operation), CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
    CHECK_EQUAL(refer(operation, SDPA_FWD_K, rows(K)), 0);
    CHECK_EQUAL(set_integers(operation, SDPA_FWD_SUBGRAPH_INPUT_UID, {Q}), 0);
    CHECK_EQUAL(cudnnBackendFinalize(operation), CUDNN_STATUS_BAD_PARAM);
    CHECK_EQUAL(set_integers(operation, SDPA_FWD_SUBGRAPH_INPUT_UID, {SCORES}), 0);
    done(operation);
}

PASSES(cudnn_engines_are_checked) {
    Library library;
    void* graph = graph_of(backward_operation());
    void* wrong_stages = library.plan_of(graph, 13, 2, 1, 3);
    CHECK_EQUAL(cudnnBackendFinalize(wrong_stages), CUDNN_STATUS_NOT_SUPPORTED);
    void* engine = make(KIND_ENGINE);
    CHECK_EQUAL(refer(engine, ENGINE_OPERATION_GRAPH, graph), 0);
    CHECK_EQUAL(set_integers(engine, ENGINE_GLOBAL_INDEX, {14}), 0);
    CHECK_EQUAL(cudnnBackendFinalize(engine), CUDNN_STATUS_NOT_SUPPORTED);
}

PASSES(cudnn_addresses_are_checked) {
    Library library;
    Memory memory;
    void* plan = done(library.plan_of(graph_of(done(forward_operation())), 8, 0, 0, 0));
    void* without_stats = memory.pack({Q, K, V, O}, 0);
    CHECK_EQUAL(cudnnBackendExecute(library.handle, plan, without_stats),
                CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    memory.addresses[V] += 2;
    CHECK_EQUAL(cudnnBackendExecute(library.handle, plan, memory.pack(FORWARD, 0)),
                CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
}

ABORTS(cudnn_tensor_behind_its_allocation, "cudnnBackendExecute, a tensor") {
    Library library;
    Memory memory;
    memory.addresses[V] += 8;
    run_forward(library, memory);
}

ABORTS(cudnn_workspace_that_is_too_small, "cudnnBackendExecute, workspace") {
    Library library;
    Memory memory;
    run_forward(library, memory);
    void* plan = done(library.plan_of(graph_of(backward_operation()), 13, 2, 1, 4));
    cudnnBackendExecute(library.handle, plan, memory.pack(BACKWARD, workspace_of(plan) / 2));
}

ABORTS(cudnn_descriptor_destroyed_while_it_is_used, "was destroyed") {
    open_device();
    void* operation = done(forward_operation());
    void* graph = graph_of(operation);
    void* engine = make(KIND_ENGINE);
    CHECK_EQUAL(refer(engine, ENGINE_OPERATION_GRAPH, graph), 0);
    CHECK_EQUAL(set_integers(engine, ENGINE_GLOBAL_INDEX, {8}), 0);
    cudnnBackendDestroyDescriptor(operation);
    cudnnBackendFinalize(engine);
}
