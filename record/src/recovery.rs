//! `attempts[].recovery`: sources of a restored state.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::number_format;

/// Recovery of the checkpoint state that an attempt resumed from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recovery {
    /// Time until the slowest rank had found, read and verified its part.
    pub seconds: f64,
    /// Bytes read by all ranks, by tier, the nearest first.
    pub sources: Vec<RecoverySource>,
    /// Digest of the restored weights, in any layout of ranks that of the attempt that saved them:
    /// `fingerprint.weights`, if it ended with that step. Absent in records of earlier versions.
    pub weights: Option<String>,
}

/// Bytes of a restored state from one tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RecoverySource {
    /// Name of the tier.
    pub tier: String,
    /// Bytes over all ranks.
    pub bytes: u64,
    /// Part of these bytes that ranks on other nodes read and sent.
    pub from_peers_bytes: u64,
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let read = self.sources.iter().filter(|source| source.bytes > 0);
        let shown = read.map(|RecoverySource { tier, bytes, from_peers_bytes }| {
            let bytes = number_format::scaled(*bytes as f64, "B");
            match from_peers_bytes {
                0 => format!("{bytes} from {tier}"),
                sent => {
                    let sent = number_format::scaled(*sent as f64, "B");
                    format!("{bytes} from {tier} (other nodes sent {sent})")
                }
            }
        });
        let shown: Vec<_> = shown.collect();
        write!(f, "{} in {:.2} s", shown.join(", "), self.seconds)
    }
}
