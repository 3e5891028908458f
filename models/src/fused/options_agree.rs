//! Options change what is kept, and no bit of what is computed.

use half::bf16;

use super::tests::{Flat, families, layout, tokens, weights};
use super::{Fused, Options, Precise, activation_bytes, matmul_kernel};
use crate::config::Family;
use crate::ops::testing::on_threads;
use crate::workload::Compute;
use crate::{Batch, Model, ModelConfig, Sums, Weights};

/// What a step computes.
#[derive(Debug, PartialEq)]
struct Step {
    loss: u64,
    /// After two micro-batches.
    gradients: Vec<f32>,
    evaluated: u64,
}

/// Two steps, the second with other weights.
fn results(config: &ModelConfig, options: Options, threads: usize) -> [Step; 2] {
    let (inputs, targets) = tokens();
    let batch = Batch { inputs: &inputs, targets: &targets };
    on_threads(threads, || {
        let mut model = Fused::new(config, layout(config), 2, 7, options).unwrap();
        let weights = weights::<f32>(config);
        let steps = [1.0, 0.75].map(|factor| {
            let weights: Vec<f32> = weights.iter().map(|weight| factor * weight).collect();
            let rounded: Vec<bf16> = weights.iter().map(|&weight| bf16::from_f32(weight)).collect();
            let weights = || match options.compute {
                Compute::F32 => Weights::F32(&weights),
                Compute::Bf16 => Weights::Bf16(&rounded),
            };
            model.weights_changed();
            let mut sink = Flat::<f32>::new(config);
            let loss = model.train(&mut weights(), batch, 0.5, Sums::Write, &mut sink).unwrap();
            sink.begin_again();
            model.train(&mut weights(), batch, 0.5, Sums::Add, &mut sink).unwrap();
            let evaluated = model.evaluate(&mut weights(), batch).unwrap();
            let (loss, evaluated) = (loss.to_bits(), evaluated.to_bits());
            Step { loss, gradients: sink.gradients, evaluated }
        });
        let (taken, planned) = match &model.network {
            Precise::F32(network) => network.room_bytes(),
            Precise::Bf16(network) => network.room_bytes(),
        };
        assert_eq!(taken, planned, "bytes of products on {threads} threads, {options:?}");
        steps
    })
}

#[test]
fn losses_and_gradients_have_the_same_bits_on_any_threads() {
    for mut config in families() {
        config.layers = 4;
        for compute in [Compute::F32, Compute::Bf16] {
            let plain = results(&config, compute.into(), 1);
            assert!(plain[0].gradients.iter().all(|gradient| gradient.is_finite()));
            for (threads, recompute, pack_weights) in
                [(2, false, false), (1, true, false), (3, false, true), (2, true, true)]
            {
                let options = Options { compute, recompute, pack_weights };
                let again = results(&config, options, threads);
                assert!(plain == again, "{options:?} on {threads} threads, {:?}", config.family);
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
                let options = Options { recompute, ..compute.into() };
                let plan = activation_bytes(&config, (2, 7), options, 2);
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

#[test]
fn the_plan_has_every_weight_of_a_product_twice_more() {
    for config in families() {
        for compute in [Compute::F32, Compute::Bf16] {
            let element = match matmul_kernel(compute) {
                "amx_bf16" | "avx512bf16" => 2,
                "amx_bf16x3" => 3 * 2,
                _ => 4, // as it is, or widened
            };
            let options = Options { pack_weights: true, ..compute.into() };
            let plan = activation_bytes(&config, (2, 7), options, 2);
            let found =
                plan.iter().find(|(name, _)| name == crate::memory::PACKED_WEIGHTS).unwrap().1;
            let layout = crate::Layout::new(&config);
            let is_vector = |shape: &[usize]| shape.len() == 1;
            let tensors = layout.tensors().iter().filter(|tensor| !is_vector(&tensor.shape));
            let bytes = |names: &[&str]| -> usize {
                let of = tensors.clone().filter(|t| names.iter().any(|name| t.name.contains(name)));
                of.map(|tensor| element * tensor.range.len()).sum()
            };
            let head = if config.is_tied() { "wte" } else { "lm_head" };
            let least = 2 * bytes(&["attn.", "mlp."]) + bytes(&[head]);
            // Columns fill up whole vectors, of which these small widths leave much.
            let found = usize::try_from(found).unwrap();
            assert!((least..2 * least).contains(&found), "{found} of {least} bytes: {options:?}");
        }
    }
}
