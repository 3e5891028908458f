//! The candle engine's estimated memory against what it allocates.

mod common;
#[path = "../../tests/support/counting.rs"]
mod counting;

use common::Flat;
use counting::peak_bytes;
use yardstick_models::{Batch, Candle, Layout, Model, ModelConfig, Sums, Weights, candle, presets};

/// Peak of live bytes during one `train` call above those before it, and the plan's total.
fn measure(config: &ModelConfig, shape: (usize, usize)) -> (u64, u64) {
    let layout = Layout::new(config);
    let weights = vec![0.01; layout.len()];
    let mut flat = Flat::new(&layout);
    let tokens: Vec<u32> =
        (0..shape.0 * shape.1).map(|index| (index % config.vocabulary) as u32).collect();
    let mut engine = Candle::new(config, layout, shape.0, shape.1).expect("the candle engine");
    let batch = Batch { inputs: &tokens, targets: &tokens };
    let weights = &mut Weights::F32(&weights);
    let peak = peak_bytes(|| {
        let trained = engine.train(weights, batch, 1.0, Sums::Write, &mut flat);
        trained.expect("the candle engine");
    });
    assert!(flat.values.iter().any(|value| *value != 0.0), "it did train");
    let plan = candle::activation_bytes(config, shape.0, shape.1);
    (peak, plan.iter().map(|(_, bytes)| bytes).sum())
}

#[test]
fn the_estimate_is_as_near_to_the_peak_as_it_says() {
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
            if (ratio - 1.0).abs() > candle::ACTIVATION_TOLERANCE {
                let family = &model.family;
                wrong.push(format!("{what}: planned {plan}, peak {peak}, {ratio:.2} {family:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
