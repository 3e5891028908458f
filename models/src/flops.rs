//! FLOPs per token, defined once: matrix multiplications only.
//!
//! The logits count, the embedding lookup and recomputation do not. A matrix of P parameters costs
//! 2 P per token forward and 4 P backward. Attention multiplies T queries with T keys, and weights
//! with T values: 4 T C per token and layer forward, three times that with backward. `full` counts
//! all T^2 pairs (Chowdhery et al. 2022, arXiv 2204.02311, appendix B); `causal` the half that a
//! causal model needs (Megatron-LM since its commit 8873b55d6a of 2025-03-06):
//!
//! full = 6 (L (4 C^2 + 2 C F) + C V) + 12 L C T; causal = 6 (L (4 C^2 + 2 C F) + C V) + 6 L C T

use serde::Serialize;

use crate::ModelConfig;

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
    let [layers, width, feed_forward, vocabulary, tokens] =
        [config.layers, config.width, config.feed_forward, config.vocabulary, sequence_tokens]
            .map(|dimension| dimension as f64);
    let block = 4.0 * width * width + 2.0 * width * feed_forward;
    let matrices = 6.0 * (layers * block + width * vocabulary);
    let attention = 12.0 * layers * width * tokens;
    FlopsPerToken { causal: matrices + attention / 2.0, full: matrices + attention }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn counts_a_small_model_by_hand() {
        let mut config = presets::load("smoke").unwrap().model;
        (config.layers, config.width, config.feed_forward) = (1, 2, 3);
        config.vocabulary = 5;
        // Parameters in matrices: 3 C C + C C = 16, C F twice = 12, C V = 10; attention C T = 8.
        let flops = flops_per_token(&config, 4);
        assert_eq!(flops, FlopsPerToken { causal: 228.0 + 48.0, full: 228.0 + 96.0 });
    }
}
