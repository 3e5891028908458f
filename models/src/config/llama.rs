//! Hyperparameters of the Llama family, besides the dimensions that all families share.

use serde::{Deserialize, Serialize};

use crate::Error;

/// Default of the number that RMSNorm adds to the mean square, as in Llama 2 and 3.
const NORM_EPSILON: f64 = 1e-5;
/// Default of the base of RoPE's wavelengths (Su et al.).
const ROPE_THETA: f64 = 10_000.0;

/// Hyperparameters of the Llama family alone (Touvron et al., arXiv 2302.13971 and 2307.09288).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Llama {
    /// K, heads of keys and values; each serves H / K heads of queries (Ainslie et al.,
    /// arXiv 2305.13245).
    pub key_value_heads: usize,
    /// Added to the mean square by RMSNorm.
    pub norm_epsilon: f64,
    /// The base of RoPE's wavelengths.
    pub rope_theta: f64,
    /// Stretching of wavelengths for a longer context than in the first training.
    pub rope_scaling: Option<RopeScaling>,
    /// Shares the token table with the head.
    pub tied: bool,
}

/// Llama 3.1's scaling of RoPE's wavelengths.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeScaling {
    /// Wavelengths above `original_context / low_freq_factor` become this many times longer.
    pub factor: f64,
    /// Waves that fit fewer times than this into the original context are stretched in full.
    pub low_freq_factor: f64,
    /// Waves that fit more often than this into the original context stay.
    pub high_freq_factor: f64,
    /// Tokens of context in the first training.
    pub original_context: usize,
}

impl Llama {
    /// Multi-head attention, RoPE to base 10000, an untied head: the first Llama.
    pub fn plain(heads: usize) -> Self {
        Self {
            key_value_heads: heads,
            norm_epsilon: NORM_EPSILON,
            rope_theta: ROPE_THETA,
            rope_scaling: None,
            tied: false,
        }
    }

    pub(super) fn validate(&self, heads: usize, head_width: usize) -> Result<(), Error> {
        if !heads.is_multiple_of(self.key_value_heads) {
            let expected = format!("a divisor of model.heads = {heads}");
            return Err(Error::invalid("model.key_value_heads", self.key_value_heads, expected));
        }
        if !head_width.is_multiple_of(2) {
            let expected = format!(
                "heads of even width for RoPE, found model.width / model.heads = {head_width}"
            );
            return Err(Error::invalid("model.heads", heads, expected));
        }
        for (key, value) in
            [("model.norm_epsilon", self.norm_epsilon), ("model.rope_theta", self.rope_theta)]
        {
            if !(value > 0.0 && value.is_finite()) {
                return Err(Error::invalid(key, value, "a finite number above 0"));
            }
        }
        self.rope_scaling.map_or(Ok(()), RopeScaling::validate)
    }

    /// The angle in radians by which RoPE rotates each of a head's D / 2 pairs per token.
    ///
    /// theta^(-2 i / D) for pair i (Su et al., arXiv 2104.09864), stretched as in Llama 3.1.
    pub fn angles_per_token(&self, head_width: usize) -> Vec<f64> {
        let angle = |pair: usize| {
            let angle = self.rope_theta.powf(-((2 * pair) as f64) / head_width as f64);
            self.rope_scaling.map_or(angle, |scaling| scaling.stretch(angle))
        };
        (0..head_width / 2).map(angle).collect()
    }
}

impl RopeScaling {
    fn validate(self) -> Result<(), Error> {
        let invalid = |key: &str, found: f64, expected: &str| {
            Err(Error::invalid(format!("model.rope_scaling.{key}"), found, expected))
        };
        if !(self.factor >= 1.0 && self.factor.is_finite()) {
            return invalid("factor", self.factor, "a finite number of at least 1");
        }
        if !(self.low_freq_factor > 0.0 && self.low_freq_factor.is_finite()) {
            return invalid("low_freq_factor", self.low_freq_factor, "a finite number above 0");
        }
        if !(self.high_freq_factor > self.low_freq_factor && self.high_freq_factor.is_finite()) {
            let expected =
                format!("a finite number above low_freq_factor = {}", self.low_freq_factor);
            return invalid("high_freq_factor", self.high_freq_factor, &expected);
        }
        if self.original_context == 0 {
            return invalid("original_context", 0.0, "at least 1");
        }
        Ok(())
    }

    /// Stretches an angle per token: long waves by the whole factor, short waves not at all, those
    /// between in proportion (Grattafiori et al., arXiv 2407.21783, section 3.4.2 names the base;
    /// the formula is that of the reference code released with Llama 3.1).
    fn stretch(self, angle: f64) -> f64 {
        let waves_in_context = self.original_context as f64 * angle / std::f64::consts::TAU;
        let share_kept = (waves_in_context - self.low_freq_factor)
            / (self.high_freq_factor - self.low_freq_factor);
        let share_kept = share_kept.clamp(0.0, 1.0);
        (1.0 - share_kept) * angle / self.factor + share_kept * angle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_fall_from_one_radian_as_powers_of_theta() {
        let llama = Llama { rope_theta: 16.0, ..Llama::plain(1) };
        assert_eq!(llama.angles_per_token(8), [1.0, 0.5, 0.25, 0.125]);
    }

    /// Llama 3.1 8B: D = 128, theta 500000, factor 8 over 8192 tokens between 1 and 4 waves.
    #[test]
    fn llama_3_stretches_long_waves_only() {
        let scaling = RopeScaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        };
        let plain = Llama { rope_theta: 5e5, ..Llama::plain(32) };
        let scaled = Llama { rope_scaling: Some(scaling), ..plain };
        let plain = plain.angles_per_token(128);
        let scaled = scaled.angles_per_token(128);
        let waves = |angle: f64| 8192.0 * angle / std::f64::consts::TAU;
        let mut between = 0;
        for (plain, scaled) in plain.iter().zip(&scaled) {
            if waves(*plain) > 4.0 {
                assert_eq!(scaled, plain);
            } else if waves(*plain) < 1.0 {
                assert_eq!(*scaled, plain / 8.0);
            } else {
                assert!(plain / 8.0 < *scaled && scaled < plain, "{plain} {scaled}");
                between += 1;
            }
        }
        assert_eq!(between, 6);
        assert!(scaled.is_sorted_by(|a, b| a > b), "no two pairs change places");
    }
}
