//! What the candle engine holds at its peak.
//!
//! Counted from the operations of `gpt.rs`, in elements of four bytes, with M = B T. Autograd keeps
//! every forward intermediate until backward ends:
//! - per block: layer norms 2 x 5 M C (centered, squared, divided, scaled, shifted); query, key and
//!   value with and without bias and split 9 M C, the scaled query M C; scores, masked, difference,
//!   exponential, softmax 5 B H T^2; mixed heads, transposed, projected, shifted, added 5 M C;
//!   feed-forward up 2 M F, GELU's square, factor, argument, sigmoid and result 5 M F; down and
//!   added 3 M C. In all 28 M C + 7 M F + 5 B H T^2;
//! - the head: logits, difference, exponential, logarithm of softmax 4 M V.
//!
//! Backward adds a gradient for every operand, also for the mask, which keeps its own (B H T^2 per
//! block). What is in flight at once was measured: 7 M V behind the logits, and ten times a block's
//! largest intermediate later on; the two do not meet.

use crate::{Layout, ModelConfig};

/// Bytes the candle engine (f32) needs besides the flat buffers at micro-batch shape (B, T), by
/// item. An estimate from the operations' shapes: its total is within a fifth of what a test sees.
pub fn activation_bytes(
    config: &ModelConfig,
    micro_sequences: usize,
    sequence_tokens: usize,
) -> Vec<(String, u64)> {
    let rows = micro_sequences * sequence_tokens;
    let [width, feed_forward, logits, scores] =
        [config.width, config.feed_forward, config.vocabulary, config.heads * sequence_tokens]
            .map(|columns| 4 * rows as u128 * columns as u128); // B L H T^2 may exceed 64 bits
    let layers = config.layers as u128;
    let in_flight = layers * scores + 10 * feed_forward.max(scores).max(width);
    let parameters = 4 * Layout::new(config).parameters() as u128;
    [
        ("block activations", layers * (28 * width + 7 * feed_forward + 5 * scores)),
        ("logits", 4 * logits),
        ("gradients in flight", in_flight.max(7 * logits)),
        ("copy of weights", parameters),
        ("parameter gradients", parameters),
    ]
    .map(|(name, bytes)| (name.to_owned(), u64::try_from(bytes).unwrap_or(u64::MAX)))
    .into()
}
