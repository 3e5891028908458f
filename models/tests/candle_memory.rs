//! The candle engine's estimated memory against what it allocates.
#![allow(unsafe_code)] // a counting allocator

mod common;

use std::alloc::{GlobalAlloc, Layout as Block, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::Flat;
use yardstick_models::{Batch, Candle, Layout, Model, ModelConfig, Sums, Weights, candle, presets};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        let live = LIVE.fetch_add(block.size(), Relaxed) + block.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: the caller keeps the contract of alloc.
        unsafe { System.alloc(block) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, block: Block) {
        LIVE.fetch_sub(block.size(), Relaxed);
        // SAFETY: the caller keeps the contract of dealloc; `pointer` is the system's.
        unsafe { System.dealloc(pointer, block) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Peak of live bytes during one `train` call above those before it, and the plan's total.
fn measure(config: &ModelConfig, shape: (usize, usize)) -> (u64, u64) {
    let layout = Layout::new(config);
    let weights = vec![0.01; layout.len()];
    let mut flat = Flat::new(&layout);
    let tokens: Vec<u32> =
        (0..shape.0 * shape.1).map(|index| (index % config.vocabulary) as u32).collect();
    let mut engine = Candle::new(config, layout, shape.0, shape.1).expect("the candle engine");
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let batch = Batch { inputs: &tokens, targets: &tokens };
    engine
        .train(&mut Weights::F32(&weights), batch, 1.0, Sums::Write, &mut flat)
        .expect("the candle engine");
    let peak = PEAK.load(Relaxed) - before;
    assert!(flat.values.iter().any(|value| *value != 0.0), "it did train");
    let plan = candle::activation_bytes(config, shape.0, shape.1);
    (peak as u64, plan.iter().map(|(_, bytes)| bytes).sum())
}

#[test]
fn the_estimate_is_within_a_fifth_of_the_peak() {
    let gpt = presets::load("smoke").unwrap().model;
    let llama = presets::load("llama-smoke").unwrap().model;
    let mut wrong = Vec::new();
    for (model, many_heads) in [(gpt, 32), (llama, 30)] {
        for (what, changed, shape) in [
            ("widths decide", ModelConfig { layers: 8, ..model.clone() }, (8, 32)),
            ("attention decides", ModelConfig { heads: many_heads, ..model.clone() }, (4, 128)),
            ("feed-forward decides", ModelConfig { feed_forward: 4096, ..model.clone() }, (4, 32)),
            ("logits decide", ModelConfig { vocabulary: 16384, ..model.clone() }, (4, 64)),
            ("parameters decide", ModelConfig { layers: 32, ..model.clone() }, (1, 16)),
        ] {
            let (peak, plan) = measure(&changed, shape);
            let ratio = plan as f64 / peak as f64;
            if !(0.8..1.2).contains(&ratio) {
                let family = &model.family;
                wrong.push(format!("{what}: planned {plan}, peak {peak}, {ratio:.2} {family:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
