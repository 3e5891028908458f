//! The memory plan: what a constructor with a counting allocator records.

use device::{Allocator, Item};

use super::{MICRO_BATCH, families};
use crate::config::Family;
use crate::fused::{Fused, Options, Recompute};
use crate::workload::Compute;
use crate::{Layout, MicroBatch, ModelConfig};

/// What the engine allocates, without allocating it.
fn plan(config: &ModelConfig, micro_batch: MicroBatch, options: Options) -> Vec<Item> {
    let allocator = Allocator::counting();
    Fused::new(config, Layout::new(config), micro_batch, options, &allocator).unwrap();
    allocator.items()
}

#[test]
fn the_plan_names_every_byte_of_gpt2_124m() {
    let config = ModelConfig {
        family: Family::Gpt,
        layers: 12,
        width: 768,
        heads: 12,
        feed_forward: 3072,
        vocabulary: 50257,
        context: 1024,
    };
    let micro_batch = MicroBatch { sequences: 4, tokens: 256 };
    let plan = plan(&config, micro_batch, Compute::F32.into());
    let saved: u64 = plan[..4].iter().map(|item| item.bytes).sum();
    // 10 C + 4 + H per token and block, and the last stream and norm.
    assert_eq!(saved, 4 * 1024 * (12 * (10 * 768 + 4 + 12) + 768 + 2));
    // Normed, branch, gradient, hidden and wide; a norm's sums of 32 groups of rows; a loss.
    assert_eq!(plan[4].bytes, 4 * (1024 * (3 * 768 + 2 * 3072) + 32 * 2 * 768) + 8);
    assert_eq!(plan[5].bytes, 4 * 1024 * (50257 + 130));
}

#[test]
fn full_recomputation_saves_one_block_and_every_input() {
    for (index, mut config) in families().into_iter().enumerate() {
        config.layers = 5;
        for (compute, element) in [(Compute::F32, 4), (Compute::Bf16, 2)] {
            let bytes = |recompute| -> u64 {
                let options = Options { recompute, ..compute.into() };
                plan(&config, MICRO_BATCH, options).iter().map(|item| item.bytes).sum()
            };
            // Per token of a block that is not saved: qkv, the heads' outputs, the stream between
            // the halves, the feed-forward layer; log-sum-exps and the norms' statistics are wide.
            let (expanded, stats) = match config.family {
                Family::Gpt => (config.feed_forward, 2),
                Family::Llama(_) => (2 * config.feed_forward, 1),
            };
            let elements = config.qkv_width() + 2 * config.width + expanded;
            let block = 14 * (elements * element + (config.heads + 2 * stats) * 4);
            assert_eq!(
                bytes(Recompute::Selective) - bytes(Recompute::Full),
                4 * block as u64,
                "family {index}, {compute}"
            );
        }
    }
}
