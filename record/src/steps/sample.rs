//! The measurements of one step, and their line in a file.

use serde::{Deserialize, Deserializer, Serialize};

use crate::phase::PhaseTimes;
use crate::text::unix_time::unix_ms;

/// One step as measured on the training thread. Plain data of a few cache lines, cheap to copy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepSample {
    /// Attempt that made the step, from 1.
    pub attempt: u32,
    /// Number of the step, from 1.
    pub step: u64,
    /// Mean cross-entropy over the global batch, nats per token; `null` if not finite.
    #[serde(deserialize_with = "number_or_null")]
    pub loss: f64,
    /// Global gradient norm before clipping; `null` if not finite.
    #[serde(deserialize_with = "number_or_null")]
    pub gradient_norm: f64,
    /// Euclidean norm of the parameters that this step began with, in steps that compute it.
    #[serde(default)]
    pub parameter_norm: Option<f64>,
    /// Ratio of the norm of the update that made these parameters to their norm, in the same steps.
    #[serde(default)]
    pub update_ratio: Option<f64>,
    /// Robust z-score of the loss among earlier losses; `null` in the first steps.
    #[serde(default)]
    pub loss_z: Option<f64>,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Tokens of the global batch.
    pub tokens: u64,
    /// Held-out loss in nats per token, if it was evaluated after this step.
    pub evaluation_loss: Option<f64>,
    /// Nanoseconds of this rank in each phase; they add up to `wall_ns`.
    #[serde(rename = "phases_ns")]
    pub phases: PhaseTimes,
    /// Nanoseconds in which at least one bucket was in flight, hidden or not.
    pub comm_total_ns: u64,
    /// The part of `comm_total_ns` that was hidden behind computation: the rank did not wait.
    pub comm_hidden_ns: u64,
    /// Nanoseconds from the start of the first reduction to the end of backward; 0 if it started
    /// later.
    pub first_bucket_lead_ns: u64,
    /// Bytes of the communicated buffers.
    pub comm_bytes: u64,
    /// Nanoseconds of wall time since the end of the previous step.
    pub wall_ns: u64,
}

/// One line of `steps/rRRRRRR.jsonl`, and of the output of `--log-format json`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepLine {
    /// End of the step, Unix time in milliseconds by the host's clock.
    pub unix_ms: u64,
    /// Rank that writes the file.
    pub rank: usize,
    /// The step.
    #[serde(flatten)]
    pub sample: StepSample,
}

impl StepLine {
    /// Creates the line of a step that has just ended.
    pub fn now(rank: usize, sample: StepSample) -> Self {
        Self { unix_ms: unix_ms(), rank, sample }
    }
}

/// Reads a number, with `null` as NaN: JSON cannot represent NaN and infinities, for which
/// serde_json writes `null`.
fn number_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::sample;

    fn round_trip(sample: StepSample) -> StepSample {
        let line = StepLine { unix_ms: 1, rank: 0, sample };
        let text = serde_json::to_string(&line).unwrap();
        serde_json::from_str::<StepLine>(&text).unwrap().sample
    }

    #[test]
    fn floats_are_read_back_bit_for_bit() {
        // A simple multiplicative sequence over the bit patterns of all magnitudes.
        let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
        let mut tried = 0;
        while tried < 20_000 {
            bits = bits
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let loss = f64::from_bits(bits ^ (bits >> 29));
            if !loss.is_finite() {
                continue;
            }
            tried += 1;
            let found =
                round_trip(StepSample { loss, evaluation_loss: Some(loss), ..sample(1, 1) });
            assert_eq!(found.loss.to_bits(), loss.to_bits(), "{loss:e}");
            assert_eq!(found.evaluation_loss.map(f64::to_bits), Some(loss.to_bits()));
        }
    }

    #[test]
    fn values_that_are_not_finite_are_read_back_as_nan() {
        for loss in [f64::NAN, f64::INFINITY] {
            assert!(round_trip(StepSample { loss, ..sample(1, 1) }).loss.is_nan());
        }
    }

    #[test]
    fn a_line_has_exactly_the_documented_keys() {
        let line = serde_json::to_value(StepLine { unix_ms: 1, rank: 0, sample: sample(1, 1) });
        let mut keys: Vec<String> = line.unwrap().as_object().unwrap().keys().cloned().collect();
        keys.sort();
        let mut promised = [
            "unix_ms",
            "rank",
            "attempt",
            "step",
            "loss",
            "gradient_norm",
            "parameter_norm",
            "update_ratio",
            "loss_z",
            "learning_rate",
            "tokens",
            "evaluation_loss",
            "phases_ns",
            "comm_total_ns",
            "comm_hidden_ns",
            "first_bucket_lead_ns",
            "comm_bytes",
            "wall_ns",
        ];
        promised.sort_unstable();
        assert_eq!(keys, promised);
    }
}
