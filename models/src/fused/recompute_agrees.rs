//! Recomputation changes what is kept, and no bit of what is computed.

use half::bf16;

use super::tests::{Flat, families, layout, tokens, weights};
use super::{Fused, Options, activation_bytes};
use crate::config::Family;
use crate::ops::testing::on_threads;
use crate::workload::Compute;
use crate::{Batch, Model, ModelConfig, Sums, Weights};

/// Loss, gradients after two micro-batches, and an evaluation.
fn results(config: &ModelConfig, options: Options, threads: usize) -> (u64, Vec<f32>, u64) {
    let (inputs, targets) = tokens();
    let batch = Batch { inputs: &inputs, targets: &targets };
    let weights = weights::<f32>(config);
    let rounded: Vec<bf16> = weights.iter().map(|&weight| bf16::from_f32(weight)).collect();
    let weights = || match options.compute {
        Compute::F32 => Weights::F32(&weights),
        Compute::Bf16 => Weights::Bf16(&rounded),
    };
    on_threads(threads, || {
        let mut model = Fused::new(config, layout(config), 2, 7, options).unwrap();
        let mut sink = Flat::<f32>::new(config);
        let loss = model.train(&mut weights(), batch, 0.5, Sums::Write, &mut sink).unwrap();
        sink.begin_again();
        model.train(&mut weights(), batch, 0.5, Sums::Add, &mut sink).unwrap();
        let evaluated = model.evaluate(&mut weights(), batch).unwrap();
        (loss.to_bits(), sink.gradients, evaluated.to_bits())
    })
}

#[test]
fn losses_and_gradients_have_the_same_bits_on_any_threads() {
    for mut config in families() {
        config.layers = 4;
        for compute in [Compute::F32, Compute::Bf16] {
            let kept = results(&config, compute.into(), 1);
            assert!(kept.1.iter().all(|gradient| gradient.is_finite()));
            for threads in [1, 2, 3] {
                let again = results(&config, Options { compute, recompute: true }, threads);
                assert!(kept == again, "{compute} on {threads} threads, {:?}", config.family);
            }
        }
    }
}

#[test]
fn the_plan_keeps_one_block_and_every_input() {
    for (index, mut config) in families().into_iter().enumerate() {
        config.layers = 5;
        for (compute, element) in [(Compute::F32, 4), (Compute::Bf16, 2)] {
            let bytes = |recompute| -> u64 {
                let plan = activation_bytes(&config, (2, 7), Options { compute, recompute }, 2);
                plan.iter().map(|(_, bytes)| bytes).sum()
            };
            // Per token of a block that is not kept: qkv, the heads' outputs, the stream between
            // the halves, the feed-forward layer; log-sum-exps and the norms' numbers are wide.
            let (expanded, numbers) = match config.family {
                Family::Gpt => (config.feed_forward, 2),
                Family::Llama(_) => (2 * config.feed_forward, 1),
            };
            let elements = config.qkv_width() + 2 * config.width + expanded;
            let block = 14 * (elements * element + (config.heads + 2 * numbers) * 4);
            assert_eq!(bytes(false) - bytes(true), 4 * block as u64, "family {index}, {compute}");
        }
    }
}
