//! What a rank is slow at.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::timing::phase::Phase;

/// What a rank is slow at, or has become slow at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Forward, backward and optimizer.
    Compute,
    /// Fetching batches.
    Data,
    /// Starting communication, which all ranks then wait for.
    Communication,
    /// Writing checkpoints.
    Checkpoint,
    /// None of these: the host does something else meanwhile.
    Host,
}

impl Kind {
    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Data => "data",
            Self::Communication => "communication",
            Self::Checkpoint => "checkpoint",
            Self::Host => "host",
        }
    }

    /// The phases of a step in which a rank does this by itself.
    pub(crate) fn phases(self) -> &'static [Phase] {
        match self {
            Self::Compute => &[Phase::Forward, Phase::Backward, Phase::Optimizer],
            Self::Data => &[Phase::Data],
            Self::Host => &[Phase::Other],
            Self::Communication | Self::Checkpoint => &[],
        }
    }
}
