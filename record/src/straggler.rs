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

/// Pace that a rank is slow compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The median of at least seven others, by more than these differ naturally.
    Peers,
    /// The median of fewer others, whose natural differences are not known.
    Few,
    /// Its own before.
    Change,
    /// The one that was measured for its device before.
    Pace,
}

impl Basis {
    /// Completes the sentence "is slow: ... more time of its own".
    fn than(self) -> &'static str {
        match self {
            Self::Peers | Self::Few => "than the median rank",
            Self::Change => "than it took before, relative to the median rank",
            Self::Pace => "than the known pace of its device, relative to the other ranks",
        }
    }
}

/// Course of a rank's excess over the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Most steps are slow.
    Steady,
    /// Fewer than half of the steps are.
    Intermittent,
    /// Single steps are slow by a quarter or more, rarer than one in ten.
    Stalls,
}

impl Pattern {
    /// Name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Intermittent => "intermittent",
            Self::Stalls => "stalls",
        }
    }
}

/// A rank that is slow, or was slow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Straggler {
    /// Number of the rank.
    pub rank: usize,
    /// Pace that it is slow compared with; `null` in records of earlier versions, as the other
    /// fields that may be `null`.
    #[serde(default)]
    pub basis: Option<Basis>,
    /// Kind of work that most of the excess is in.
    pub kind: Kind,
    /// Course of the excess over the steps.
    #[serde(default)]
    pub pattern: Option<Pattern>,
    /// Excess of its own time over that pace, as a share of the latter.
    pub slower_share: f64,
    /// Lower end of the interval of two standard errors around it.
    #[serde(default)]
    pub low: Option<f64>,
    /// Upper end.
    #[serde(default)]
    pub high: Option<f64>,
    /// Share of the slowest rank's own time that the job would gain if the rank were as fast as the
    /// slowest other one: a mean over the last steps, at most 160.
    #[serde(default)]
    pub job_gain_share: Option<f64>,
    /// Excess over what is natural, in standard errors.
    pub z_score: f64,
    /// First step of the window in which it was found slow.
    pub since_step: u64,
    /// Last step of the blocks in which it no longer was slow; `null` if it stayed slow.
    pub until_step: Option<u64>,
}

impl Straggler {
    /// Describes the straggler in a sentence, with the place of the rank.
    pub fn text(&self, ranks: &[RankRecord]) -> String {
        let name = ranks[self.rank].location(ranks);
        let Self { kind, since_step, z_score, .. } = self;
        if let Some(step) = self.until_step {
            return format!("{name} is no longer slow since step {step}");
        }
        let percent = |share: f64| format!("{:.0}", share * 100.0);
        let interval = self
            .low
            .zip(self.high)
            .map(|(low, high)| format!(" [{}, {}]", percent(low), percent(high)));
        let than = self.basis.unwrap_or(Basis::Peers).than();
        let course = self.pattern.filter(|it| *it != Pattern::Steady).map_or("", |it| match it {
            Pattern::Stalls => ", in single steps",
            _ => ", in fewer than half of the steps",
        });
        let gain = self.job_gain_share.filter(|share| *share >= 0.005).map(|share| {
            format!("; without it the slowest rank would take {} % less", percent(share))
        });
        format!(
            "{name} is slow at {}: {}{} % more time of its own {than} since step {since_step}\
             {course} (z-score {z_score:.0}){}",
            kind.name(),
            percent(self.slower_share),
            interval.unwrap_or_default(),
            gain.unwrap_or_default(),
        )
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
