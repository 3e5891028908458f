//! A meter changes no result, sees every op, and its FLOPs add up to the model's.

use super::{Flat, engine, families, tokens, weights};
use crate::config::Family;
use crate::flops::flops_per_token;
use crate::fused::{Options, Recompute};
use crate::meter::{Count, Kind, Op, Role};
use crate::workload::Compute;
use crate::{Batch, Model, ModelConfig, Sums, Weights};

/// Two micro-batches.
struct Results {
    loss: u64,
    gradients: Vec<f32>,
    /// What the meter saw, where it is on.
    counts: Vec<(Op, Count)>,
}

fn results(config: &ModelConfig, recompute: Recompute, is_metered: bool) -> Results {
    let (inputs, targets) = tokens();
    let batch = Batch { inputs: &inputs, targets: &targets };
    let weights = weights::<f32>(config);
    let options = Options { recompute, ..Compute::F32.into() };
    let mut model = engine(config, options);
    let mut sink = Flat::<f32>::new(config);
    if is_metered {
        model.meter().unwrap().start();
    }
    model
        .train_on_host(&mut Weights::from(&weights[..]), batch, 0.5, Sums::Write, &mut sink)
        .unwrap();
    sink.begin_micro_batch();
    let loss = model
        .train_on_host(&mut Weights::from(&weights[..]), batch, 0.5, Sums::Add, &mut sink)
        .unwrap();
    let meter = model.meter().unwrap();
    meter.stop().unwrap();
    Results { loss: loss.to_bits(), gradients: sink.gradients, counts: meter.counts().collect() }
}

#[test]
fn a_meter_changes_no_bit_and_counts_only_when_asked() {
    for config in families() {
        for recompute in [Recompute::Selective, Recompute::Full] {
            let off = results(&config, recompute, false);
            let on = results(&config, recompute, true);
            assert!(off.loss == on.loss && off.gradients == on.gradients, "{:?}", config.family);
            assert!(off.counts.is_empty() && !on.counts.is_empty());
        }
    }
}

#[test]
fn matrix_products_add_up_to_the_flops_of_the_model() {
    for (index, config) in families().into_iter().enumerate() {
        for recompute in [Recompute::Selective, Recompute::Full] {
            let Results { counts, .. } = results(&config, recompute, true);
            let sum = |of: &dyn Fn(Op) -> bool| -> f64 {
                counts.iter().filter(|(op, _)| of(*op)).map(|(_, count)| count.work.flops).sum()
            };
            let flops = flops_per_token(&config, 7);
            let tokens = 2.0 * 14.0;
            // Without attention: causal is matrices + a / 2, full is matrices + a.
            let matrices = (2.0 * flops.causal - flops.full) * tokens;
            let found = sum(&|(role, kind)| role != Role::Attention && kind != Kind::Recompute);
            assert_eq!(found, matrices, "family {index}");
            // One block holds all seven tokens: all pairs, and five products instead of four.
            let forward = sum(&|op| op == (Role::Attention, Kind::Forward));
            let backward = sum(&|op| op == (Role::Attention, Kind::Backward));
            let all = (flops.full - flops.causal) * 2.0 * tokens;
            assert_eq!((forward, backward), (all / 3.0, all * 5.0 / 6.0), "family {index}");
            let recomputed = sum(&|(_, kind)| kind == Kind::Recompute);
            let repeats = recompute == Recompute::Full;
            assert_eq!(recomputed > 0.0, repeats, "products are repeated");
        }
    }
}

#[test]
fn every_op_of_a_family_is_seen_and_takes_time() {
    for config in families() {
        let Results { counts, .. } = results(&config, Recompute::Selective, true);
        let is_llama = matches!(config.family, Family::Llama(_));
        let found = |op| counts.iter().find(|(other, _)| *other == op).map(|(_, count)| *count);
        for role in [Role::AttentionIn, Role::AttentionOut, Role::Expand, Role::Contract] {
            for kind in [Kind::Forward, Kind::Input, Kind::Weight] {
                assert_eq!(found((role, kind)).unwrap().calls, 4, "{role:?} {kind:?}");
            }
            assert_eq!(found((role, Kind::Bias)).is_some(), !is_llama, "{role:?}");
        }
        for role in [Role::Embedding, Role::Norm, Role::Attention, Role::CrossEntropy] {
            assert!(found((role, Kind::Forward)).is_some(), "{role:?}");
            assert!(found((role, Kind::Backward)).is_some(), "{role:?}");
        }
        assert_eq!(found((Role::Rope, Kind::Backward)).is_some(), is_llama);
        assert_eq!(found((Role::Activation, Kind::Recompute)).is_some(), is_llama);
        for (op, count) in &counts {
            assert!(!count.time.is_zero() && count.work.bytes > 0.0, "{op:?}: {count:?}");
        }
    }
}
