//! Options change what is kept in memory, and no bit of what is computed.

use device::Allocator;
use half::bf16;

use super::{Flat, MICRO_BATCH, families, layout, tokens, weights};
use crate::fused::{Fused, Options, Recompute};
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

/// Two steps, the second with other weights; they allocate nothing that was not planned.
fn results(config: &ModelConfig, options: Options) -> [Step; 2] {
    let (inputs, targets) = tokens();
    let batch = Batch { inputs: &inputs, targets: &targets };
    on_threads(options.threads, || {
        let engine = |allocator: &Allocator| {
            Fused::new(config, layout(config), MICRO_BATCH, options, allocator).unwrap()
        };
        let allocator = Allocator::host();
        let mut model = engine(&allocator);
        let weights = weights::<f32>(config);
        let steps = [1.0, 0.75].map(|factor| {
            let weights: Vec<f32> = weights.iter().map(|weight| factor * weight).collect();
            let rounded: Vec<bf16> = weights.iter().map(|&weight| bf16::from_f32(weight)).collect();
            let weights = || match options.compute {
                Compute::F32 => Weights::from(&weights[..]),
                Compute::Bf16 => Weights::from(&rounded[..]),
            };
            let mut sink = Flat::<f32>::new(config);
            let loss =
                model.train_on_host(&mut weights(), batch, 0.5, Sums::Write, &mut sink).unwrap();
            sink.begin_micro_batch();
            model.train_on_host(&mut weights(), batch, 0.5, Sums::Add, &mut sink).unwrap();
            let evaluated = model.evaluate(&mut weights(), batch).unwrap();
            Step { loss: loss.to_bits(), gradients: sink.gradients, evaluated: evaluated.to_bits() }
        });
        let counting = Allocator::counting();
        engine(&counting);
        assert_eq!(allocator.items(), counting.items(), "{options:?}");
        steps
    })
}

#[test]
fn the_processor_computes_outputs_of_norms_again() {
    let options = Options { recompute: Recompute::None, ..Compute::F32.into() };
    for config in families() {
        let allocator = Allocator::counting();
        let refused = Fused::new(&config, layout(&config), MICRO_BATCH, options, &allocator);
        let expected = "run.recompute = none: expected selective or full with run.device = cpu";
        assert_eq!(refused.unwrap_err().to_string(), expected);
    }
}

#[test]
fn losses_and_gradients_have_the_same_bits_on_any_threads() {
    for mut config in families() {
        config.layers = 4;
        for compute in [Compute::F32, Compute::Bf16] {
            let plain = Options { threads: 1, ..compute.into() };
            let expected = results(&config, plain);
            assert!(expected[0].gradients.iter().all(|gradient| gradient.is_finite()));
            let others = [
                (2, Recompute::Selective),
                (1, Recompute::Full),
                (3, Recompute::Selective),
                (2, Recompute::Full),
            ];
            for (threads, recompute) in others {
                let options = Options { recompute, threads, ..compute.into() };
                let found = results(&config, options);
                assert!(found == expected, "{options:?}, {:?}", config.family);
            }
        }
    }
}
