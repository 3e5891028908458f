//! The candle engine's estimated memory against its allocations.

mod common;

use common::Flat;
use device::Allocator;
use support::counting::{Counting, peak_bytes};
use yardstick_models::{
    Batch, Candle, Layout, MicroBatch, Model, ModelConfig, Sums, Weights, candle, presets,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Peak of live bytes during one `train` call above those before it, and the estimate.
fn measure(config: &ModelConfig, micro_batch: MicroBatch) -> (u64, u64) {
    let layout = Layout::new(config);
    let weights = vec![0.01; layout.len()];
    let mut flat = Flat::new(&layout);
    let tokens: Vec<u32> =
        (0..micro_batch.rows()).map(|index| (index % config.vocabulary) as u32).collect();
    let counting = Allocator::counting();
    let engine = Candle::new(config, layout, micro_batch, &counting);
    let mut engine = engine.expect("the candle engine");
    let batch = Batch { inputs: &tokens, targets: &tokens };
    let weights = &mut Weights::from(&weights[..]);
    let peak = peak_bytes(|| {
        let trained = engine.train_on_host(weights, batch, 1.0, Sums::Write, &mut flat);
        trained.expect("the candle engine");
    });
    assert!(flat.values.iter().any(|value| *value != 0.0), "it did train");
    (peak, counting.total_bytes())
}

#[test]
fn the_estimate_is_as_near_to_the_peak_as_it_says() {
    let gpt = presets::load("smoke").unwrap().model;
    let llama = presets::load("llama-smoke").unwrap().model;
    let mut wrong = Vec::new();
    for (model, many_heads) in [(gpt, 32), (llama, 30)] {
        for (what, changed, (sequences, tokens)) in [
            ("widths decide", ModelConfig { layers: 8, ..model.clone() }, (8, 32)),
            ("attention decides", ModelConfig { heads: many_heads, ..model.clone() }, (4, 128)),
            ("feed-forward decides", ModelConfig { feed_forward: 4096, ..model.clone() }, (4, 32)),
            ("logits decide", ModelConfig { vocabulary: 16384, ..model.clone() }, (4, 64)),
            ("parameters decide", ModelConfig { layers: 32, ..model.clone() }, (1, 16)),
        ] {
            let (peak, estimate) = measure(&changed, MicroBatch { sequences, tokens });
            let ratio = estimate as f64 / peak as f64;
            if (ratio - 1.0).abs() > candle::ACTIVATION_TOLERANCE {
                let family = &model.family;
                wrong.push(format!(
                    "{what}: estimate {estimate}, peak {peak}, {ratio:.2} {family:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
