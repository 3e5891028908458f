//! The keys of one family, their defaults, and impossible values.

use super::*;
use crate::Workload;
use crate::presets::{self, parse, to_toml};

/// The preset's text with one line replaced.
fn changed(from: &str, to: &str) -> Workload {
    let text = presets::text("llama-smoke").unwrap();
    assert!(text.contains(from), "{from} is not in the preset");
    parse(&text.replace(from, to), "test").unwrap()
}

fn llama(workload: &Workload) -> Llama {
    let Family::Llama(llama) = workload.model.family else { panic!("{workload:?}") };
    llama
}

const SCALING: &str = "\n[model.rope_scaling]\nfactor = 4.0\nlow_freq_factor = 1.0\n\
                       high_freq_factor = 4.0\noriginal_context = 64\n";

#[test]
fn every_key_of_the_family_is_hashed() {
    let mut ids =
        std::collections::BTreeSet::from([presets::load("llama-smoke").unwrap().id(None)]);
    for (from, to) in [
        ("key_value_heads = 2", "key_value_heads = 3"),
        ("norm_epsilon = 1e-5", "norm_epsilon = 1e-6"),
        ("rope_theta = 10000.0", "rope_theta = 500000"),
        ("tied = false", "tied = true"),
        (SCALING, ""),
        ("factor = 4.0\nlow", "factor = 8.0\nlow"),
        ("low_freq_factor = 1.0", "low_freq_factor = 2.0"),
        ("high_freq_factor = 4.0", "high_freq_factor = 5.0"),
        ("original_context = 64", "original_context = 32"),
    ] {
        let workload = changed(from, to);
        workload.validate().unwrap();
        assert!(ids.insert(workload.id(None)), "{to} does not change the id");
        assert_eq!(parse(&to_toml(&workload), "round trip").unwrap(), workload);
    }
}

#[test]
fn defaults_are_those_of_the_first_llama_and_do_not_change_the_id() {
    let written = changed(SCALING, "");
    let text = presets::text("llama-smoke").unwrap().replace(SCALING, "");
    for line in ["norm_epsilon = 1e-5\n", "rope_theta = 10000.0\n", "tied = false\n"] {
        let left_out = parse(&text.replace(line, ""), "test").unwrap();
        assert_eq!(left_out, written, "{line}");
        assert_eq!(left_out.id(None), written.id(None), "{line}");
    }
    let multi_head = changed("key_value_heads = 2\n", "");
    assert_eq!(llama(&multi_head).key_value_heads, multi_head.model.heads);
}

#[test]
fn keys_of_another_family_are_refused() {
    for (from, to, key) in [
        ("key_value_heads = 2", "key_value_heads = 2", "model.key_value_heads = 2"),
        ("key_value_heads = 2", "", "model.norm_epsilon = 0.00001"),
        ("key_value_heads = 2\n", "tied = false\n", "model.tied = false"),
    ] {
        let text = presets::text("llama-smoke").unwrap().replace("\"llama\"", "\"gpt\"");
        let mut text = text.replace(from, to);
        if to.starts_with("tied") {
            text = text.replace("norm_epsilon = 1e-5\nrope_theta = 10000.0\ntied = false\n", "");
            text = text.replace(SCALING, "");
        }
        let error = parse(&text, "test").unwrap_err().to_string();
        assert!(error.contains(key) && error.contains("GPT"), "{key}: {error}");
    }
}

#[test]
fn impossible_values_name_their_key() {
    for (from, to, key) in [
        ("key_value_heads = 2", "key_value_heads = 0", "model.key_value_heads = 0"),
        ("key_value_heads = 2", "key_value_heads = 4", "a divisor of model.heads = 6"),
        ("key_value_heads = 2", "key_value_heads = 12", "model.key_value_heads = 12"),
        ("\nheads = 6", "\nheads = 8", "model.width / model.heads = 15"),
        ("norm_epsilon = 1e-5", "norm_epsilon = 0.0", "model.norm_epsilon = 0"),
        ("norm_epsilon = 1e-5", "norm_epsilon = nan", "model.norm_epsilon = NaN"),
        ("rope_theta = 10000.0", "rope_theta = -1", "model.rope_theta = -1"),
        ("rope_theta = 10000.0", "rope_theta = inf", "model.rope_theta = inf"),
        ("factor = 4.0\nlow", "factor = 0.5\nlow", "model.rope_scaling.factor = 0.5"),
        ("low_freq_factor = 1.0", "low_freq_factor = 0.0", "rope_scaling.low_freq_factor = 0"),
        ("high_freq_factor = 4.0", "high_freq_factor = 1.0", "rope_scaling.high_freq_factor = 1"),
        ("original_context = 64", "original_context = 0", "rope_scaling.original_context = 0"),
    ] {
        let error = changed(from, to).validate().unwrap_err().to_string();
        assert!(error.contains(key), "{to:?}: {error}");
    }
}

#[test]
fn grouped_queries_share_keys_and_values() {
    let model = presets::load("llama-smoke").unwrap().model;
    assert_eq!((model.head_width(), model.key_value_heads()), (20, 2));
    assert_eq!(model.qkv_width(), (6 + 2 + 2) * 20);
    let gpt = presets::load("smoke").unwrap().model;
    assert_eq!(gpt.qkv_width(), 3 * gpt.width);
    assert!(gpt.is_tied() && !model.is_tied());
}
