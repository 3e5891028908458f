//! FLOPs per token, defined once: matrix multiplications only.
//!
//! The logits count, the embedding lookup and recomputation do not. A matrix of P parameters costs
//! 2 P per token forward and 4 P backward. Attention multiplies T queries with T keys, and weights
//! with T values: 4 T C per token and layer forward, three times that with backward. `full` counts
//! all T^2 pairs (Chowdhery et al. 2022, arXiv 2204.02311, appendix B); `causal` the half that a
//! causal model needs (Megatron-LM since its commit 8873b55d6a of 2025-03-06):
//!
//! full = 6 (L (2 C^2 + 2 C K D + M C F) + C V) + 12 L C T, causal with 6 L C T, where M is the
//! number of feed-forward matrices: 2 for GPT, 3 for SwiGLU. With K = H heads, C K D is C^2.

use serde::Serialize;

use crate::ModelConfig;
use crate::config::Family;

/// Floating-point operations to train on one token, in both conventions for attention.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FlopsPerToken {
    /// Attention counted as causal: half of all pairs.
    pub causal: f64,
    /// Attention counted in full.
    pub full: f64,
}

/// FLOPs per token of training on sequences of T tokens, forward and backward.
pub fn flops_per_token(config: &ModelConfig, sequence_tokens: usize) -> FlopsPerToken {
    let feed_forward = match config.family {
        Family::Gpt => 2 * config.feed_forward,
        Family::Llama(_) => 3 * config.feed_forward,
    };
    let [layers, width, qkv, feed_forward, vocabulary, tokens] = [
        config.layers,
        config.width,
        config.qkv_width(),
        feed_forward,
        config.vocabulary,
        sequence_tokens,
    ]
    .map(|dimension| dimension as f64);
    let block = width * (qkv + width + feed_forward);
    let matrices = 6.0 * (layers * block + width * vocabulary);
    let attention = 12.0 * layers * width * tokens;
    FlopsPerToken { causal: matrices + attention / 2.0, full: matrices + attention }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Llama;
    use crate::presets;

    /// MFLOP per token at T = 1024 with the vocabulary padded to 50304, as Megatron-LM counts them:
    /// full until 2025-03, causal since.
    #[test]
    fn agrees_with_megatron_in_both_conventions() {
        for (name, full, causal) in [
            ("gpt2-124m", 854.7, 798.0),
            ("gpt2-355m", 2423.0, 2272.0),
            ("gpt2-774m", 5199.0, 4916.0),
            ("gpt2-1558m", 10274.0, 9802.0),
        ] {
            let mut config = presets::load(name).unwrap().model;
            config.vocabulary = 50304;
            let flops = flops_per_token(&config, 1024);
            let unit = if name == "gpt2-124m" { 0.1 } else { 1.0 };
            for (found, expected) in [(flops.full, full), (flops.causal, causal)] {
                let error = (found / 1e6 - expected).abs();
                assert!(error <= 0.5 * unit, "{name}: {found} against {expected} million");
            }
        }
    }

    /// GFLOP per token at T = 8192 from 7.50 and 69.50 billion matmul parameters; Megatron-Bridge's
    /// published pairs of tokens and TFLOP per second agree with the causal counts.
    #[test]
    fn agrees_with_published_counts_of_llama_3() {
        for (name, full, causal) in [("llama3-8b", 57.91, 51.47), ("llama3-70b", 481.4, 449.2)] {
            let flops = flops_per_token(&presets::load(name).unwrap().model, 8192);
            for (found, expected) in [(flops.full, full), (flops.causal, causal)] {
                let error = (found / 1e9 / expected - 1.0).abs();
                assert!(error < 2e-4, "{name}: {found} against {expected} billion");
            }
        }
    }

    /// Published tokens per second of one GPU give the published share of its peak, within a point.
    /// The sources: llm-foundry's benchmarking README (MPT), torchtitan's
    /// benchmarks/llama3_h100_202412, Megatron-Bridge's performance archive 25.11 (tokens and TFLOP
    /// per second), gpu-recipes' a3ultra with MaxText (its step log). Peaks in TFLOP/s are the
    /// datasheets' dense bf16 peaks.
    #[test]
    fn published_rates_give_the_published_mfu() {
        const A100: f64 = 312.0;
        const H100: f64 = 989.5;
        let mpt = |layers, width| {
            let mut config = presets::load("gpt2-124m").unwrap().model;
            (config.layers, config.width, config.feed_forward) = (layers, width, 4 * width);
            (config.heads, config.vocabulary) = (width / 64, 50432);
            config
        };
        let llama = |name| presets::load(name).unwrap().model;
        let full = |flops: FlopsPerToken| flops.full;
        let causal = |flops: FlopsPerToken| flops.causal;
        type Count = fn(FlopsPerToken) -> f64;
        let rows: [(&str, ModelConfig, usize, Count, f64, f64, f64); 9] = [
            ("MPT-125M", mpt(12, 768), 2048, full, 143_000.0, A100, 44.8),
            ("MPT-1.3B, 8", mpt(24, 2048), 2048, full, 45_500.0, H100, 41.8),
            ("MPT-1.3B, 512", mpt(24, 2048), 2048, full, 39_800.0, H100, 36.7),
            ("MPT-7B", mpt(32, 4096), 2048, full, 10_600.0, H100, 46.4),
            ("torchtitan 8B", llama("llama3-8b"), 8192, full, 5_762.0, H100, 33.0),
            ("torchtitan 8B, compiled", llama("llama3-8b"), 8192, full, 6_667.0, H100, 39.0),
            ("Megatron 8B", llama("llama3-8b"), 8192, causal, 14_451.0, H100, 744.0 / 9.895),
            ("Megatron 70B", llama("llama3-70b"), 8192, causal, 1_621.0, H100, 728.0 / 9.895),
            ("MaxText 70B", llama("llama3-70b"), 8192, full, 1_055.949, H100, 508.371 / 9.895),
        ];
        for (name, config, tokens, count, rate, peak, published) in rows {
            let mfu = 100.0 * count(flops_per_token(&config, tokens)) * rate / (peak * 1e12);
            assert!((mfu - published).abs() < 1.0, "{name}: {mfu} against {published} %");
        }
    }

    #[test]
    fn counts_a_small_model_by_hand() {
        let mut config = presets::load("smoke").unwrap().model;
        (config.layers, config.width, config.feed_forward) = (1, 2, 3);
        (config.heads, config.vocabulary) = (1, 5);
        // Parameters in matrices: 3 C C + C C = 16, C F twice = 12, C V = 10; attention C T = 8.
        let flops = flops_per_token(&config, 4);
        assert_eq!(flops, FlopsPerToken { causal: 228.0 + 48.0, full: 228.0 + 96.0 });
    }

    #[test]
    fn counts_a_small_llama_by_hand() {
        let mut config = presets::load("llama-smoke").unwrap().model;
        let llama = Llama { key_value_heads: 1, ..Llama::plain(2) };
        (config.family, config.heads) = (Family::Llama(llama), 2);
        (config.layers, config.width, config.feed_forward) = (1, 4, 3);
        config.vocabulary = 5;
        // C (C + 2 D) + C C = 48, C F three times = 36, C V = 20; attention C T = 16.
        let flops = flops_per_token(&config, 4);
        assert_eq!(flops, FlopsPerToken { causal: 624.0 + 96.0, full: 624.0 + 192.0 });
    }
}
