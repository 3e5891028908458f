// The products and the softmax of an attention and of its gradient, one head at a time.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "attention.h"

namespace emulated {

namespace {

using Matrix = std::vector<float>;

// One query head of one sequence.
struct Head {
    const Attention& attention;
    const Numbers numbers;
    const int64_t sequence;
    const int64_t head;

    int64_t key_head() const { return head / attention.group(); }

    Matrix rows(const Tensor& tensor, int64_t at) const {
        const int64_t tokens = tensor.dimensions[2];
        const int64_t columns = tensor.dimensions[3];
        Matrix matrix(size_t(tokens * columns));
        for (int64_t token = 0; token < tokens; token++) {
            for (int64_t column = 0; column < columns; column++) {
                matrix[size_t(token * columns + column)] =
                    tensor.load(sequence, at, token, column);
            }
        }
        return matrix;
    }

    bool keeps(int64_t query, int64_t key) const {
        const Mask& mask = attention.mask;
        if (!mask.present) {
            return true;
        }
        return mask.comparison == POINTWISE_CMP_GE ? query >= key : query > key;
    }

    // The scores of a query: scaled, then masked.
    void scores(float* row, int64_t query, const Matrix& q, const Matrix& k) const {
        const int64_t columns = attention.columns();
        for (int64_t key = 0; key < attention.keys(); key++) {
            const float product =
                std::inner_product(&q[size_t(query * columns)], &q[size_t(query * columns)] + columns,
                                   &k[size_t(key * columns)], 0.0f);
            row[key] = keeps(query, key) ? product * numbers.scale : numbers.masked_score;
        }
    }
};

void forward(const Head& head) {
    const Attention& attention = head.attention;
    const int64_t columns = attention.columns();
    const int64_t keys = attention.keys();
    const Matrix q = head.rows(attention.q, head.head);
    const Matrix k = head.rows(attention.k, head.key_head());
    const Matrix v = head.rows(attention.v, head.key_head());
    Matrix row(static_cast<size_t>(keys));
    for (int64_t query = 0; query < attention.queries(); query++) {
        head.scores(row.data(), query, q, k);
        const float largest = *std::max_element(row.begin(), row.end());
        Matrix output(size_t(columns), 0.0f);
        float sum = 0.0f;
        for (int64_t key = 0; key < keys; key++) {
            const float power = std::exp(row[size_t(key)] - largest);
            sum += power;
            const float factor = rounded(power);
            for (int64_t column = 0; column < columns; column++) {
                output[size_t(column)] += factor * v[size_t(key * columns + column)];
            }
        }
        for (int64_t column = 0; column < columns; column++) {
            attention.o.store(head.sequence, head.head, query, column,
                              output[size_t(column)] / sum);
        }
        if (attention.has_stats) {
            attention.stats.store(head.sequence, head.head, query, 0, largest + std::log(sum));
        }
    }
}

// The gradients of one query head.
struct Gradients {
    Matrix dq;
    Matrix dk;
    Matrix dv;
};

// The gradients of the scores of a query, times the scale, and its probabilities; both narrowed.
struct Row {
    Matrix probabilities;
    Matrix gradients;
};

Row differentiate(const Head& head, int64_t query, const Matrix& q, const Matrix& k,
                  const Matrix& v) {
    const Attention& attention = head.attention;
    const int64_t columns = attention.columns();
    const size_t keys = size_t(attention.keys());
    Row row = {Matrix(keys), Matrix(keys)};
    head.scores(row.probabilities.data(), query, q, k);
    const float log_sum = attention.stats.load(head.sequence, head.head, query, 0);
    float delta = 0.0f;
    Matrix doutput(static_cast<size_t>(columns));
    for (int64_t column = 0; column < columns; column++) {
        doutput[size_t(column)] =
            attention.doutput.load(head.sequence, head.head, query, column);
        delta += doutput[size_t(column)] *
                 attention.o.load(head.sequence, head.head, query, column);
    }
    for (size_t key = 0; key < keys; key++) {
        const float probability = std::exp(row.probabilities[key] - log_sum);
        const float product = std::inner_product(doutput.begin(), doutput.end(),
                                                 &v[key * size_t(columns)], 0.0f);
        row.probabilities[key] = rounded(probability);
        row.gradients[key] = rounded(probability * (product - delta) * head.numbers.scale);
    }
    return row;
}

void add_product(float* sums, float factor, const float* row, int64_t columns) {
    for (int64_t column = 0; column < columns; column++) {
        sums[column] += factor * row[column];
    }
}

// Where the order is not fixed, it is another one each time.
std::vector<size_t> order_of(size_t count, Order order) {
    std::vector<size_t> indices(count);
    std::iota(indices.begin(), indices.end(), size_t(0));
    if (order == Order::Any) {
        static thread_local std::random_device random;
        std::shuffle(indices.begin(), indices.end(), std::minstd_rand(random()));
    }
    return indices;
}

Gradients backward(const Head& head, Order order) {
    const Attention& attention = head.attention;
    const int64_t columns = attention.columns();
    const Matrix q = head.rows(attention.q, head.head);
    const Matrix k = head.rows(attention.k, head.key_head());
    const Matrix v = head.rows(attention.v, head.key_head());
    const Matrix doutput = head.rows(attention.doutput, head.head);
    Gradients sums = {Matrix(q.size(), 0.0f), Matrix(k.size(), 0.0f), Matrix(v.size(), 0.0f)};
    const std::vector<size_t> keys = order_of(size_t(attention.keys()), order);
    for (int64_t query = 0; query < attention.queries(); query++) {
        const Row row = differentiate(head, query, q, k, v);
        const size_t at = size_t(query * columns);
        for (const size_t key : keys) {
            const size_t key_at = key * size_t(columns);
            add_product(&sums.dq[at], row.gradients[key], &k[key_at], columns);
            add_product(&sums.dk[key_at], row.gradients[key], &q[at], columns);
            add_product(&sums.dv[key_at], row.probabilities[key], &doutput[at], columns);
        }
    }
    return sums;
}

void store(const Tensor& tensor, int64_t sequence, int64_t head, const Matrix& matrix) {
    const int64_t columns = tensor.dimensions[3];
    for (int64_t token = 0; token < tensor.dimensions[2]; token++) {
        for (int64_t column = 0; column < columns; column++) {
            tensor.store(sequence, head, token, column,
                         matrix[size_t(token * columns + column)]);
        }
    }
}

// The heads that share a key: each one's gradient of it is narrowed before they are added.
void backward_of_group(const Attention& attention, Numbers numbers, int64_t sequence,
                       int64_t key_head, Order order) {
    Matrix dk;
    Matrix dv;
    for (int64_t index = 0; index < attention.group(); index++) {
        const int64_t head = key_head * attention.group() + index;
        const Gradients found = backward(Head{attention, numbers, sequence, head}, order);
        store(attention.dq, sequence, head, found.dq);
        if (index == 0) {
            dk.assign(found.dk.size(), 0.0f);
            dv.assign(found.dv.size(), 0.0f);
        }
        for (size_t i = 0; i < dk.size(); i++) {
            dk[i] += rounded(found.dk[i]);
            dv[i] += rounded(found.dv[i]);
        }
    }
    store(attention.dk, sequence, key_head, dk);
    store(attention.dv, sequence, key_head, dv);
}

}  // namespace

void compute(const Attention& attention, Numbers numbers, Order order) {
    for (int64_t sequence = 0; sequence < attention.sequences(); sequence++) {
        if (attention.is_backward) {
            for (int64_t head = 0; head < attention.key_heads(); head++) {
                backward_of_group(attention, numbers, sequence, head, order);
            }
            continue;
        }
        for (int64_t head = 0; head < attention.heads(); head++) {
            forward(Head{attention, numbers, sequence, head});
        }
    }
}

}  // namespace emulated
