//! Peak memory of the candle engine.
//!
//! Counted from the operations of `gpt.rs`, in elements of four bytes, with M = B T. Autograd keeps
//! every forward intermediate until backward ends:
//! - per block: layer norms 2 x 5 M C (centered, squared, divided, scaled, shifted); query, key and
//!   value with and without bias and split 9 M C, the scaled query M C; scores, masked, difference,
//!   exponential, softmax 5 B H T^2; mixed heads, transposed, projected, shifted, added 5 M C;
//!   feed-forward up 2 M F, GELU's square, factor, argument, sigmoid and result 5 M F; down and
//!   added 3 M C. In all 28 M C + 7 M F + 5 B H T^2;
//! - likewise of `llama.rs`, with Q = (H + 2 K) D and G = K D: norms 2 x 3 M C (squared, divided,
//!   scaled); query, key and value once and by heads 2 M Q, rotated 4 M C + 4 M G (four products of
//!   halves, two sums, joined), shared by groups 2 M C, scaled query M C; scores as above; mixed,
//!   transposed, projected, added 4 M C; gate and up 2 M F, SwiGLU's 3 M F; down and added 2 M C.
//!   In all 19 M C + 2 M Q + 4 M G + 5 M F + 5 B H T^2;
//! - the head: logits, difference, exponential, logarithm of softmax 4 M V.
//!
//! Backward adds a gradient for every operand, also for the mask, which keeps its own (B H T^2 per
//! block). The peak of its transient memory was measured: 7 M V behind the logits, and ten times a
//! block's largest intermediate later; the two do not coincide.

use device::Allocator;

use crate::config::Family;
use crate::{Layout, MicroBatch, ModelConfig};

/// Tolerated error of the recorded bytes, as a share of the engine's allocations.
pub const ACTIVATION_TOLERANCE: f64 = 0.2;

/// Records the bytes that the candle engine (f32) needs besides the flat buffers, by purpose. An
/// estimate from the operations' shapes: a test holds it to [`ACTIVATION_TOLERANCE`].
pub(super) fn record_activations(
    config: &ModelConfig,
    micro_batch: MicroBatch,
    allocator: &Allocator,
) {
    // In 128 bits: B L H T^2 may exceed 64.
    let bytes = |columns: usize| 4 * micro_batch.rows() as u128 * columns as u128;
    let [width, feed_forward, logits, scores] =
        [config.width, config.feed_forward, config.vocabulary, config.heads * micro_batch.tokens]
            .map(bytes);
    let layers = config.layers as u128;
    let block = match config.family {
        Family::Gpt => 28 * width + 7 * feed_forward,
        Family::Llama(llama) => {
            let qkv = bytes(config.qkv_width());
            let groups = bytes(llama.key_value_heads * config.head_width());
            19 * width + 2 * qkv + 4 * groups + 5 * feed_forward
        }
    };
    let in_flight = layers * scores + 10 * feed_forward.max(scores).max(width);
    let parameters = 4 * Layout::new(config).parameters() as u128;
    for (purpose, bytes) in [
        ("block activations", layers * (block + 5 * scores)),
        ("logits", 4 * logits),
        ("gradients in flight", in_flight.max(7 * logits)),
        ("copy of weights", parameters),
        ("parameter gradients", parameters),
    ] {
        allocator.for_purpose(purpose).record(u64::try_from(bytes).unwrap_or(u64::MAX));
    }
}
