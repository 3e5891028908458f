//! A meter changes nothing, sees every op, and counts the FLOPs that there are.

use super::tests::{Flat, families, layout, tokens, weights};
use super::{Fused, Options};
use crate::flops::flops_per_token;
use crate::meter::{Count, Kind, Op, Role};
use crate::workload::Compute;
use crate::{Batch, Model, ModelConfig, Sums, Weights};

/// Loss and gradients of two micro-batches, and what a meter saw of them where it is on.
fn results(config: &ModelConfig, recompute: bool, on: bool) -> (u64, Vec<f32>, Vec<(Op, Count)>) {
    let (inputs, targets) = tokens();
    let batch = Batch { inputs: &inputs, targets: &targets };
    let weights = weights::<f32>(config);
    let options = Options { recompute, ..Compute::F32.into() };
    let mut model = Fused::new(config, layout(config), 2, 7, options).unwrap();
    let mut sink = Flat::<f32>::new(config);
    if on {
        model.meter().unwrap().start();
    }
    model.train(&mut Weights::F32(&weights), batch, 0.5, Sums::Write, &mut sink).unwrap();
    sink.begin_again();
    let loss = model.train(&mut Weights::F32(&weights), batch, 0.5, Sums::Add, &mut sink).unwrap();
    let meter = model.meter().unwrap();
    meter.stop();
    (loss.to_bits(), sink.gradients, meter.counts().collect())
}

#[test]
fn a_meter_changes_no_bit_and_counts_only_when_asked() {
    for config in families() {
        for recompute in [false, true] {
            let (off, on) = (results(&config, recompute, false), results(&config, recompute, true));
            assert!((off.0, &off.1) == (on.0, &on.1), "{:?}", config.family);
            assert!(off.2.is_empty() && !on.2.is_empty());
        }
    }
}

#[test]
fn matrix_products_add_up_to_the_flops_of_the_model() {
    for (index, config) in families().into_iter().enumerate() {
        for recompute in [false, true] {
            let (_, _, counts) = results(&config, recompute, true);
            let sum = |of: &dyn Fn(Op) -> bool| -> f64 {
                counts.iter().filter(|(op, _)| of(*op)).map(|(_, count)| count.work.flops).sum()
            };
            let (flops, tokens) = (flops_per_token(&config, 7), 2.0 * 14.0);
            // Without attention: causal is matrices + a / 2, full is matrices + a.
            let matrices = (2.0 * flops.causal - flops.full) * tokens;
            let found = sum(&|(role, kind)| role != Role::Attention && kind != Kind::Again);
            assert_eq!(found, matrices, "family {index}");
            // One block holds all seven tokens: all pairs, and five products instead of four.
            let forward = sum(&|op| op == (Role::Attention, Kind::Forward));
            let backward = sum(&|op| op == (Role::Attention, Kind::Backward));
            let all = (flops.full - flops.causal) * 2.0 * tokens;
            assert_eq!((forward, backward), (all / 3.0, all * 5.0 / 6.0), "family {index}");
            let again = sum(&|(_, kind)| kind == Kind::Again);
            assert_eq!(again > 0.0, recompute, "products are done again by recomputation only");
        }
    }
}

#[test]
fn every_op_of_a_family_is_seen_and_takes_time() {
    for config in families() {
        let (_, _, counts) = results(&config, false, true);
        let is_llama = matches!(config.family, crate::config::Family::Llama(_));
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
        assert_eq!(found((Role::Activation, Kind::Again)).is_some(), is_llama);
        for (op, count) in &counts {
            assert!(!count.time.is_zero() && count.work.bytes > 0.0, "{op:?}: {count:?}");
        }
    }
}
