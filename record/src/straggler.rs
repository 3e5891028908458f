//! Stragglers: ranks that are slow, and their kinds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::phase::Phase;
use crate::sections::RankRecord;

/// Kind of work that a rank is slow at, or has become slow at.
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
    /// Remaining time: the host does something else.
    Host,
}

impl Kind {
    /// Every kind, in the order in which ranks send their times.
    pub const ALL: [Self; 5] =
        [Self::Compute, Self::Data, Self::Communication, Self::Checkpoint, Self::Host];

    /// Name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Data => "data",
            Self::Communication => "communication",
            Self::Checkpoint => "checkpoint",
            Self::Host => "host",
        }
    }

    /// Phases of a step in which a rank does this by itself.
    pub fn phases(self) -> &'static [Phase] {
        match self {
            Self::Compute => &[Phase::Forward, Phase::Backward, Phase::Optimizer],
            Self::Data => &[Phase::Data],
            Self::Host => &[Phase::Other],
            Self::Communication | Self::Checkpoint => &[],
        }
    }
}

/// A rank that is slow, or was slow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Straggler {
    /// Number of the rank.
    pub rank: usize,
    /// Kind of work that most of the excess is in.
    pub kind: Kind,
    /// Excess of its own time over the median rank's, as a share of the latter.
    pub slower_share: f64,
    /// Robust z-score of that excess, by its changes from step to step.
    pub z_score: f64,
    /// First step of the first window in which it was slow.
    pub since_step: u64,
    /// First step of the window in which it no longer was slow; `null` if it stayed slow.
    pub until_step: Option<u64>,
}

impl Straggler {
    /// Describes the straggler in a sentence, with the place of the rank.
    pub fn text(&self, ranks: &[RankRecord]) -> String {
        let name = ranks[self.rank].location(ranks);
        let (kind, percent) = (self.kind.name(), self.slower_share * 100.0);
        match self.until_step {
            None => format!(
                "{name} is slow at {kind}: {percent:.0} % more time of its own than the median \
                 rank since step {} (robust z-score {:.0})",
                self.since_step, self.z_score
            ),
            Some(step) => format!("{name} is no longer slow since step {step}"),
        }
    }
}

/// Rates that a rank has reached. Other load on its cores only makes a rate smaller.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Sniffed")] // name in the schema of records
pub struct CalibrationRates {
    /// FLOP/s of matrix products of the same shapes on every rank.
    pub matmul_flops_per_second: f64,
    /// Bytes per second of STREAM's triad, over arrays that do not fit into caches.
    pub memory_bytes_per_second: f64,
}
