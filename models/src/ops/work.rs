//! Work of each op: FLOPs of its products, and bytes that must move.
//!
//! FLOPs are those of matrix products only, as in [`crate::flops`]. Bytes are useful traffic: every
//! operand is read once and every result written once, a result that is added to is read as well,
//! and vectors (biases, parameters of norms) are left out. Caches can make the true traffic
//! smaller, blocking can make it larger. N rows, I inputs, O outputs, C width, V vocabulary.

use super::matmul::{self, Sums};
use super::{Element, attention, cross_entropy, rope};
use crate::meter::Work;

/// Work without products, with traffic of `elements` elements and `wide` wide elements.
fn traffic<E: Element>(elements: usize, wide: usize) -> Work {
    let bytes = elements as f64 * size_of::<E>() as f64;
    Work { flops: 0.0, bytes: bytes + wide as f64 * size_of::<E::Wide>() as f64 }
}

/// A product of `multiplications`, with the traffic of its operands and result.
fn product<E: Element>(multiplications: usize, elements: usize, wide: usize) -> Work {
    Work { flops: 2.0 * multiplications as f64, ..traffic::<E>(elements, wide) }
}

/// Number of moves of the results of sums: accumulated results are read as well.
fn moves(sums: Sums) -> usize {
    match sums {
        Sums::Write => 1,
        Sums::Add => 2,
    }
}

/// Y = X W^T, with an epilogue that moves `more` further matrices (N, O).
pub fn linear<E: Element>(shape: matmul::Shape, more: usize) -> Work {
    let matmul::Shape { rows, inputs, outputs } = shape;
    let elements = rows * inputs + outputs * inputs + (1 + more) * rows * outputs;
    product::<E>(rows * inputs * outputs, elements, 0)
}

/// dX = dY W, with an epilogue that moves `more` further matrices (N, I).
pub fn linear_input<E: Element>(shape: matmul::Shape, more: usize) -> Work {
    let matmul::Shape { rows, inputs, outputs } = shape;
    let elements = rows * outputs + outputs * inputs + (1 + more) * rows * inputs;
    product::<E>(rows * inputs * outputs, elements, 0)
}

/// dW = or += dY^T X.
pub fn linear_weight<E: Element>(shape: matmul::Shape, sums: Sums) -> Work {
    let matmul::Shape { rows, inputs, outputs } = shape;
    let wide = moves(sums) * outputs * inputs;
    product::<E>(rows * inputs * outputs, rows * (inputs + outputs), wide)
}

/// db, the column sums of dY.
pub fn linear_bias<E: Element>(shape: matmul::Shape) -> Work {
    traffic::<E>(shape.rows * shape.outputs, 0)
}

/// Two products per pair of query and key; pairs as computed ([`attention::Shape::pairs`]).
pub fn attention<E: Element>(shape: &attention::Shape) -> Work {
    let rows = shape.sequences * shape.tokens;
    let elements = rows * (shape.qkv_width() + shape.width());
    product::<E>(2 * shape.pairs() * shape.head_width, elements, rows * shape.heads)
}

/// Five products per pair: scores, recomputed, and the gradients of probabilities, q, k and v.
pub fn attention_backward<E: Element>(shape: &attention::Shape) -> Work {
    let rows = shape.sequences * shape.tokens;
    let elements = 2 * rows * (shape.qkv_width() + shape.width());
    product::<E>(5 * shape.pairs() * shape.head_width, elements, rows * shape.heads)
}

/// Rotates queries and keys in place, forward or backward.
pub fn rope<E: Element>(rows: usize, shape: rope::Shape, head_width: usize) -> Work {
    traffic::<E>(2 * rows * shape.heads * head_width, 0)
}

/// A norm of (N, C) that writes or reads `stats` numbers in all; backward reads x and dy and adds
/// to dx.
pub fn norm<E: Element>(elements: usize, stats: usize, is_backward: bool) -> Work {
    traffic::<E>(if is_backward { 4 } else { 2 } * elements, stats)
}

/// An op that moves `matrices` matrices of `elements` elements each.
pub fn elementwise<E: Element>(matrices: usize, elements: usize) -> Work {
    traffic::<E>(matrices * elements, 0)
}

/// Rows of `tables` tables, summed.
pub fn embedding<E: Element>(elements: usize, tables: usize) -> Work {
    traffic::<E>((1 + tables) * elements, 0)
}

/// Adds the rows of dx to those of `tables` tables.
pub fn embedding_backward<E: Element>(elements: usize, tables: usize) -> Work {
    traffic::<E>(elements, 2 * tables * elements)
}

/// Logits = H W^T, and dH = dlogits W: both move and multiply the same.
pub(crate) fn head<E: Element>(chunk: cross_entropy::Shape) -> Work {
    let cross_entropy::Shape { tokens, width, vocabulary } = chunk;
    let elements = tokens * vocabulary + (vocabulary + tokens) * width;
    product::<E>(tokens * width * vocabulary, elements, 0)
}

/// Reads the logits.
pub(crate) fn loss<E: Element>(chunk: cross_entropy::Shape) -> Work {
    traffic::<E>(chunk.tokens * chunk.vocabulary, 0)
}

/// Work from the logits to their gradient.
pub(crate) fn loss_backward<E: Element>(chunk: cross_entropy::Shape) -> Work {
    traffic::<E>(2 * chunk.tokens * chunk.vocabulary, 0)
}

/// dW = or += dlogits^T H.
pub(crate) fn head_weight<E: Element>(chunk: cross_entropy::Shape, sums: Sums) -> Work {
    let cross_entropy::Shape { tokens, width, vocabulary } = chunk;
    let wide = moves(sums) * vocabulary * width;
    product::<E>(tokens * width * vocabulary, tokens * (vocabulary + width), wide)
}

/// The sums over `elements` f32 gradients.
pub fn gradient_norm(elements: usize) -> Work {
    traffic::<f32>(elements, 0)
}

/// AdamW in f32: gradient read; weight and both moments read and written; working weights of
/// `working_bytes` each written.
pub fn adamw(elements: usize, working_bytes: usize) -> Work {
    let moved = traffic::<f32>(7 * elements, 0).bytes;
    Work { flops: 0.0, bytes: moved + elements as f64 * working_bytes as f64 }
}

/// The sums of squares of f32 weights and of their last update: weight and both moments read.
pub fn update_norm(elements: usize) -> Work {
    traffic::<f32>(3 * elements, 0)
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    const SHAPE: matmul::Shape = matmul::Shape { rows: 3, inputs: 5, outputs: 7 };

    #[test]
    fn products_of_a_linear_layer_by_hand() {
        // 2 x 3 x 5 x 7; X 15, W 35, Y 21.
        let work = |bytes: usize| Work { flops: 210.0, bytes: bytes as f64 };
        assert_eq!(linear::<f32>(SHAPE, 0), work(4 * (15 + 35 + 21)));
        assert_eq!(linear::<bf16>(SHAPE, 1), work(2 * (15 + 35 + 42)));
        assert_eq!(linear_input::<bf16>(SHAPE, 1), work(2 * (21 + 35 + 30)));
        assert_eq!(linear_weight::<bf16>(SHAPE, Sums::Write), work(2 * (21 + 15) + 4 * 35));
        assert_eq!(linear_weight::<bf16>(SHAPE, Sums::Add), work(2 * (21 + 15) + 8 * 35));
        assert_eq!(linear_bias::<bf16>(SHAPE), Work { flops: 0.0, bytes: 42.0 });
    }

    #[test]
    fn attention_by_hand() {
        let shape = attention::Shape {
            sequences: 2,
            tokens: 70,
            heads: 4,
            key_value_heads: 2,
            head_width: 8,
        };
        // 64 x 64 pairs, then 6 queries against 70 keys; 2 sequences, 4 heads.
        let pairs = 8 * (64 * 64 + 6 * 70);
        assert_eq!(shape.pairs(), pairs);
        let work = attention::<bf16>(&shape);
        assert_eq!(work.flops, (2 * 2 * 8 * pairs) as f64);
        assert_eq!(work.bytes, (140 * (2 * (64 + 32) + 4 * 4)) as f64);
        let work = attention_backward::<bf16>(&shape);
        assert_eq!(work.flops, (5 * 2 * 8 * pairs) as f64);
        assert_eq!(work.bytes, (140 * (2 * 2 * (64 + 32) + 4 * 4)) as f64);
    }

    #[test]
    fn ops_without_products_by_hand() {
        let bytes = |work: Work| {
            assert_eq!(work.flops, 0.0);
            work.bytes as usize
        };
        let rotated = rope::Shape { columns: 32, heads: 3 };
        assert_eq!(bytes(rope::<bf16>(5, rotated, 4)), 2 * 2 * 5 * 3 * 4);
        assert_eq!(bytes(norm::<bf16>(10, 4, false)), 2 * 20 + 16);
        assert_eq!(bytes(norm::<f32>(10, 4, true)), 4 * 40 + 16);
        assert_eq!(bytes(elementwise::<bf16>(3, 10)), 60);
        assert_eq!(bytes(embedding::<bf16>(10, 2)), 60);
        assert_eq!(bytes(embedding_backward::<bf16>(10, 2)), 20 + 160);
        assert_eq!(bytes(gradient_norm(10)), 40);
        assert_eq!(bytes(adamw(10, 0)), 280);
        assert_eq!(bytes(adamw(10, 2)), 300);
        assert_eq!(bytes(update_norm(10)), 120);
    }

    #[test]
    fn the_head_by_hand() {
        let chunk = cross_entropy::Shape { tokens: 3, width: 5, vocabulary: 7 };
        let work = |flops: usize, bytes: usize| Work { flops: flops as f64, bytes: bytes as f64 };
        assert_eq!(head::<bf16>(chunk), work(210, 2 * (21 + 35 + 15)));
        assert_eq!(loss::<bf16>(chunk), work(0, 42));
        assert_eq!(loss_backward::<bf16>(chunk), work(0, 84));
        assert_eq!(head_weight::<bf16>(chunk, Sums::Write), work(210, 2 * (21 + 15) + 4 * 35));
        assert_eq!(head_weight::<f32>(chunk, Sums::Add), work(210, 4 * (21 + 15) + 8 * 35));
    }
}
