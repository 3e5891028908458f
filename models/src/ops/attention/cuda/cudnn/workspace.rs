//! Size of the workspace of plans: a function of the shape alone, so that it can be planned without
//! a device.

use crate::ops::attention::Shape;

/// cuDNN pads T to its tiles, which have at most so many rows.
const TILE_TOKENS: usize = 128;
/// Counters and alignment.
const SLACK_BYTES: usize = 1 << 20;
/// Size that is worth its memory on any GPU: dividing a small attention into parts would leave
/// multiprocessors idle.
const SMALL_BYTES: usize = 64 << 20;

/// Bytes of the workspace of all plans of a shape: the largest of
///
/// - what a backward needs whose workspace grows with T: dq in f32, dk and dv of every query head
///   in bf16 where heads share keys, and two sums for each row;
/// - what a backward needs for the heads that share one key, where the gradients of scores are
///   kept: T squared of each;
/// - a size that is always granted.
pub(crate) fn workspace_bytes(shape: &Shape) -> usize {
    linear(shape).max(scores_of_a_group(shape)).max(SMALL_BYTES)
}

fn linear(shape: &Shape) -> usize {
    let rows = shape.sequences * shape.heads * padded_tokens(shape);
    rows * (4 * shape.head_width + bytes_of_shared_heads(shape) + 8) + SLACK_BYTES
}

fn scores_of_a_group(shape: &Shape) -> usize {
    let rows = shape.group() * padded_tokens(shape);
    rows * (2 * padded_tokens(shape) + bytes_of_shared_heads(shape) + 8) + SLACK_BYTES
}

/// Bytes of dk and dv for a row, where heads share keys.
fn bytes_of_shared_heads(shape: &Shape) -> usize {
    if shape.group() > 1 { 4 * shape.head_width } else { 0 }
}

fn padded_tokens(shape: &Shape) -> usize {
    shape.tokens.next_multiple_of(TILE_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA3_8B: Shape =
        Shape { sequences: 1, tokens: 8192, heads: 32, key_value_heads: 8, head_width: 128 };

    #[test]
    fn the_largest_of_three_needs_is_granted() {
        let short = Shape { tokens: 128, ..LLAMA3_8B };
        assert_eq!(workspace_bytes(&short), SMALL_BYTES);
        let many = Shape { sequences: 4, tokens: 2048, ..LLAMA3_8B };
        assert_eq!(workspace_bytes(&many), 4 * 32 * 2048 * (512 + 512 + 8) + SLACK_BYTES);
        assert_eq!(workspace_bytes(&LLAMA3_8B), 4 * 8192 * (2 * 8192 + 512 + 8) + SLACK_BYTES);
    }

    #[test]
    fn heads_that_share_no_key_need_no_copies_of_gradients() {
        let alone = Shape { sequences: 8, tokens: 2048, key_value_heads: 32, ..LLAMA3_8B };
        assert_eq!(workspace_bytes(&alone), 8 * 32 * 2048 * (512 + 8) + SLACK_BYTES);
    }
}
