//! The fused engine allocates the memory that its plan counts, and nothing after the first steps:
//! both families, in both formats, with recomputation and without.
//!
//! One test: the counters cover the whole process.

mod common;

use common::Flat;
use device::{Allocator, mapped_bytes};
use half::bf16;
use support::counting::{Counting, calls_and_bytes};
use yardstick_models::config::{Family, Llama};
use yardstick_models::fused::{Fused, Options, Recompute};
use yardstick_models::ops::{adamw, gradient_norm};
use yardstick_models::workload::Compute;
use yardstick_models::{
    Batch, Layout, MicroBatch, Model, ModelConfig, Sums, Weights, init_weights,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MICRO_BATCH: MicroBatch = MicroBatch { sequences: 2, tokens: 70 };
const THREADS: usize = 2;

/// GPT, and Llama with an untied head and with a tied one.
fn families() -> [Family; 3] {
    let grouped = Llama { key_value_heads: 1, ..Llama::plain(3) };
    [Family::Gpt, Family::Llama(grouped), Family::Llama(Llama { tied: true, ..grouped })]
}

fn config(family: Family) -> ModelConfig {
    ModelConfig {
        family,
        layers: 3,
        width: 96,
        heads: 3,
        feed_forward: 384,
        vocabulary: 301,
        context: 80,
    }
}

/// Weights, gradients and moments of one training run.
struct Training {
    engine: Fused,
    compute: Compute,
    sink: Flat,
    weights: Vec<f32>,
    working: Vec<bf16>,
    moments: [Vec<f32>; 2],
    inputs: Vec<u32>,
    targets: Vec<u32>,
}

impl Training {
    fn new(engine: Fused, compute: Compute) -> Self {
        let layout = engine.layout().clone();
        let len = layout.len();
        let ids = |offset: usize| {
            (offset..offset + MICRO_BATCH.rows()).map(|i| (i * 13 % 301) as u32).collect()
        };
        let mut weights = vec![0.0; len];
        init_weights(&layout, 0, &mut weights);
        Self {
            engine,
            compute,
            sink: Flat::new(&layout),
            working: weights.iter().map(|&weight| bf16::from_f32(weight)).collect(),
            weights,
            moments: [vec![0.0; len], vec![0.0; len]],
            inputs: ids(0),
            targets: ids(1),
        }
    }

    fn step(&mut self) -> f64 {
        let Self { engine, compute, sink, weights, working, moments, inputs, targets } = self;
        let batch = Batch { inputs, targets };
        sink.begin();
        let source = &mut of(*compute, weights, working);
        let loss = engine.train_on_host(source, batch, 1e-2, Sums::Write, sink);
        let loss = loss.expect("a step");
        assert!(gradient_norm::sums(&sink.values, 0).squares.is_finite());
        let adamw = adamw::AdamW {
            learning_rate: 3e-3,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.0,
            correction1: 0.5,
            correction2: 0.5,
            gradient_scale: 1.0,
        };
        let [first, second] = moments;
        adamw::step_and_narrow(weights, working, &sink.values, first, second, &adamw);
        let source = &mut of(*compute, weights, working);
        engine.evaluate(source, batch).expect("an evaluation");
        loss
    }
}

fn of<'a>(compute: Compute, weights: &'a [f32], working: &'a [bf16]) -> Weights<'a> {
    match compute {
        Compute::F32 => Weights::from(weights),
        Compute::Bf16 => Weights::from(working),
    }
}

#[test]
fn the_plan_is_kept_and_steady_state_allocates_nothing() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build().expect("a thread pool");
    for family in families() {
        for compute in [Compute::F32, Compute::Bf16] {
            for recompute in [Recompute::Selective, Recompute::Full] {
                let options = Options { recompute, threads: THREADS, ..compute.into() };
                pool.install(|| plan_and_steady_state(&config(family), options));
            }
        }
    }
}

fn plan_and_steady_state(config: &ModelConfig, options: Options) {
    let case = format!("{:?}, {options:?}", config.family);
    let build = |allocator: &Allocator| {
        Fused::new(config, Layout::new(config), MICRO_BATCH, options, allocator).expect("an engine")
    };
    let (counting, host) = (Allocator::counting(), Allocator::host());
    let (_, _, small) = calls_and_bytes(|| build(&counting));
    let mapped_before = mapped_bytes();
    let (engine, _, heap) = calls_and_bytes(|| build(&host));
    let taken = heap + mapped_bytes() - mapped_before;
    assert_eq!(host.items(), counting.items(), "{case}");
    // Names and ranges of tensors, and the ledger, are not in the plan.
    let rest_max = 64 * 1024;
    assert!(small < rest_max, "{case}: {small} bytes for a plan");
    let planned = counting.total_bytes();
    assert!((planned..planned + rest_max).contains(&taken), "{case}: {taken} of {planned} bytes");

    let mut training = Training::new(engine, options.compute);
    let first = training.step();
    training.step();
    training.step();
    let mapped_before = mapped_bytes();
    let go_on = || (0..20).fold(first, |_, _| training.step());
    let (last, calls, _) = calls_and_bytes(go_on);
    let mapped = mapped_bytes() - mapped_before;
    assert_eq!((calls, mapped), (0, 0), "{case}: allocations and bytes mapped after step 3");
    assert!(last < 0.9 * first, "{case}: the loss falls: {first} to {last}");
}
