//! The presets against published dimensions, and TOML there and back.

use super::*;
use crate::Layout;
use crate::config::{Family, Llama};

#[test]
fn all_parse_validate_and_round_trip() {
    for name in names() {
        let workload = load(name).unwrap();
        workload.validate().unwrap_or_else(|error| panic!("{name}: {error}"));
        workload.batch.accumulation(1).unwrap();
        let again = parse(&to_toml(&workload), "round trip").unwrap();
        assert_eq!(workload, again, "{name}");
        assert_eq!(workload.id(None), again.id(None), "{name}");
    }
    assert_eq!(load("gpt5"), None);
}

#[test]
fn parameters_are_the_published_ones() {
    for (name, parameters) in [
        ("gpt2-124m", 124_439_808),
        ("gpt2-355m", 354_823_168),
        ("gpt2-774m", 774_030_080),
        ("gpt2-1558m", 1_557_611_200),
        // Published weights: `HuggingFaceTB/SmolLM-135M` on huggingface.co.
        ("smollm-135m", 134_515_008),
        // Touvron et al. 2023 and the model cards print 8.03, 68.98 and 70.55 billion.
        ("llama3-8b", 8_030_261_248),
        ("llama2-70b", 68_976_648_192),
        ("llama3-70b", 70_553_706_496),
    ] {
        assert_eq!(Layout::new(&load(name).unwrap().model).parameters(), parameters, "{name}");
    }
    // Brown et al. 2020 print rounded counts.
    for (name, billions) in
        [("gpt3-1.3b", 1.3), ("gpt3-6.7b", 6.7), ("gpt3-13b", 13.0), ("gpt3-175b", 175.0)]
    {
        let found = Layout::new(&load(name).unwrap().model).parameters() as f64 / 1e9;
        assert!((found / billions - 1.0).abs() < 0.02, "{name}: {found} billion");
    }
}

/// L, C, H, K, F, V and the context; RoPE's base and RMSNorm's epsilon; whether the head is tied.
type Dimensions = ([usize; 7], [f64; 2], bool);

/// `config.json` beside the published weights: `HuggingFaceTB/SmolLM-135M`,
/// `meta-llama/Llama-2-70b-hf`, `meta-llama/Meta-Llama-3-8B` and `meta-llama/Meta-Llama-3-70B` on
/// huggingface.co.
const LLAMA: [(&str, Dimensions); 4] = [
    ("smollm-135m", ([30, 576, 9, 3, 1536, 49_152, 2048], [1e4, 1e-5], true)),
    ("llama2-70b", ([80, 8192, 64, 8, 28672, 32000, 4096], [1e4, 1e-5], false)),
    ("llama3-8b", ([32, 4096, 32, 8, 14336, 128_256, 8192], [5e5, 1e-5], false)),
    ("llama3-70b", ([80, 8192, 64, 8, 28672, 128_256, 8192], [5e5, 1e-5], false)),
];

/// The count of parameters does not reveal heads, RoPE and epsilon.
#[test]
fn every_llama_has_the_published_dimensions() {
    let mut compared = 0;
    for name in names().filter(|name| *name != "llama-smoke") {
        let model = load(name).unwrap().model;
        let Family::Llama(llama) = model.family else { continue };
        let Llama { key_value_heads, norm_epsilon, rope_theta, rope_scaling, tied } = llama;
        let found: Dimensions = (
            [
                model.layers,
                model.width,
                model.heads,
                key_value_heads,
                model.feed_forward,
                model.vocabulary,
                model.context,
            ],
            [rope_theta, norm_epsilon],
            tied,
        );
        let published = LLAMA.iter().find(|(other, _)| *other == name).map(|(_, it)| *it);
        assert_eq!(Some(found), published, "{name}");
        assert_eq!(rope_scaling, None, "{name}");
        compared += 1;
    }
    assert_eq!(compared, LLAMA.len());
}

/// H and the context. GPT-2: `config.json` of `openai-community` on huggingface.co. GPT-3: Brown et
/// al. 2020, table 2.1, but for the 24 heads of 1.3B, which do not divide its width.
#[test]
fn every_gpt_has_the_published_heads() {
    for (name, heads, context) in [
        ("gpt2-124m", 12, 1024),
        ("gpt2-355m", 16, 1024),
        ("gpt2-774m", 20, 1024),
        ("gpt2-1558m", 25, 1024),
        ("gpt3-1.3b", 16, 2048),
        ("gpt3-6.7b", 32, 2048),
        ("gpt3-13b", 40, 2048),
        ("gpt3-175b", 96, 2048),
    ] {
        let model = load(name).unwrap().model;
        assert_eq!((model.heads, model.context), (heads, context), "{name}");
    }
}

#[test]
fn global_batches_hold_the_published_tokens() {
    for (name, tokens) in [
        ("gpt2-124m", 0.524e6),
        ("gpt2-1558m", 0.524e6),
        ("smollm-135m", 1e6),
        ("gpt3-1.3b", 1e6),
        ("gpt3-6.7b", 2e6),
        ("gpt3-13b", 2e6),
        ("gpt3-175b", 3.2e6),
        ("llama2-70b", 4e6),
        ("llama3-8b", 8e6),
    ] {
        let batch = load(name).unwrap().batch;
        let found = (batch.global_sequences(1) * batch.sequence_tokens) as f64;
        assert!((found / tokens - 1.0).abs() < 0.05, "{name}: {found} tokens");
    }
}

#[test]
fn presets_have_different_ids() {
    let ids: std::collections::BTreeSet<String> =
        names().map(|name| load(name).unwrap().id(None)).collect();
    assert_eq!(ids.len(), names().len());
}

#[test]
fn errors_name_origin_line_and_key() {
    let text = text("smoke").unwrap();
    for (change, expected) in [
        (text.replace("width = 128", "widht = 128"), "unknown field `widht`"),
        (text.replace("width = 128", "width = \"wide\""), "width = \"wide\""),
        (text.replace("layers = 2\n", ""), "missing field `layers`"),
        (text.replace("[schedule]", "[shcedule]"), "unknown field `shcedule`"),
        (text.replace("\"cosine\"", "\"square\""), "unknown variant `square`"),
        (text.replace("steps = 200", "steps = -1"), "-1"),
        (text.replace("[data]", "[data"), "[data"),
    ] {
        let error = parse(&change, "my.toml").unwrap_err().to_string();
        assert!(error.starts_with("my.toml: "), "{error}");
        assert!(error.contains(expected), "expected {expected} in: {error}");
        assert!(error.contains("line "), "{error}");
    }
}
