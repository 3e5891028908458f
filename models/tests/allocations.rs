//! The fused engine allocates what its plan says, and nothing after the first steps.
//!
//! One test: the counters are of the whole process.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::sync::atomic::{AtomicU64, Ordering};

use yardstick_models::config::Family;
use yardstick_models::fused::{Fused, Options, activation_bytes};
use yardstick_models::ops::{adamw, norm};
use yardstick_models::workload::Compute;
use yardstick_models::{Batch, Layout, Model, ModelConfig, Pass, StepSink, Sums, Weights};

/// The system's allocator with counters.
struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

fn count(bytes: usize) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, memory: Memory) -> *mut u8 {
        count(memory.size());
        // SAFETY: by the caller's contract.
        unsafe { System.alloc(memory) }
    }

    unsafe fn alloc_zeroed(&self, memory: Memory) -> *mut u8 {
        count(memory.size());
        // SAFETY: by the caller's contract.
        unsafe { System.alloc_zeroed(memory) }
    }

    unsafe fn realloc(&self, start: *mut u8, memory: Memory, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: by the caller's contract.
        unsafe { System.realloc(start, memory, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, memory: Memory) {
        // SAFETY: by the caller's contract.
        unsafe { System.dealloc(start, memory) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Flat {
    layout: Layout,
    gradients: Vec<f32>,
}

impl StepSink for Flat {
    fn gradient(&mut self, segment: usize) -> &mut [f32] {
        &mut self.gradients[self.layout.segments()[segment].range.clone()]
    }

    fn complete(&mut self, _segment: usize) {}

    fn enter(&mut self, _pass: Pass) {}
}

const SEQUENCES: usize = 2;
const TOKENS: usize = 70;

fn config() -> ModelConfig {
    ModelConfig {
        family: Family::Gpt,
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
    sink: Flat,
    weights: Vec<f32>,
    moments: [Vec<f32>; 2],
    inputs: Vec<u32>,
    targets: Vec<u32>,
}

impl Training {
    fn new(engine: Fused) -> Self {
        let layout = engine.layout().clone();
        let len = layout.len();
        let ids = |offset: usize| {
            (offset..offset + SEQUENCES * TOKENS).map(|i| (i * 13 % 301) as u32).collect()
        };
        Self {
            engine,
            sink: Flat { layout, gradients: vec![0.0; len] },
            weights: (0..len).map(|i| (i * 7919 % 1000) as f32 * 1e-4 - 0.05).collect(),
            moments: [vec![0.0; len], vec![0.0; len]],
            inputs: ids(0),
            targets: ids(1),
        }
    }

    fn step(&mut self) -> f64 {
        let batch = Batch { inputs: &self.inputs, targets: &self.targets };
        let loss = self.engine.train(
            &mut Weights::F32(&self.weights),
            batch,
            1e-2,
            Sums::Write,
            &mut self.sink,
        );
        let loss = loss.expect("a step");
        assert!(norm::sum_of_squares(&self.sink.gradients).is_finite());
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
        let [first, second] = &mut self.moments;
        adamw::step::<f32>(&mut self.weights, None, &self.sink.gradients, first, second, &adamw);
        self.engine.evaluate(&mut Weights::F32(&self.weights), batch).expect("an evaluation");
        loss
    }
}

#[test]
fn the_plan_is_kept_and_steady_state_allocates_nothing() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("a thread pool");
    for recompute in [false, true] {
        pool.install(|| plan_and_steady_state(Options { compute: Compute::F32, recompute }));
    }
}

fn plan_and_steady_state(options: Options) {
    let config = config();
    let planned = activation_bytes(&config, (SEQUENCES, TOKENS), options, 2);
    let planned: u64 = planned.iter().map(|(_, bytes)| bytes).sum();
    let layout = Layout::new(&config);
    let before = BYTES.load(Ordering::Relaxed);
    let engine = Fused::new(&config, layout, SEQUENCES, TOKENS, options).expect("an engine");
    let taken = BYTES.load(Ordering::Relaxed) - before;
    // Names and places of tensors come on top.
    assert!((planned..planned + 64 * 1024).contains(&taken), "{taken} of {planned} bytes");

    let mut training = Training::new(engine);
    let first = training.step();
    training.step();
    training.step();
    let before = CALLS.load(Ordering::Relaxed);
    let mut last = first;
    for _ in 0..20 {
        last = training.step();
    }
    assert_eq!(CALLS.load(Ordering::Relaxed) - before, 0, "allocations after step 3");
    assert!(last < 0.9 * first, "the loss falls: {first} to {last}");
}
