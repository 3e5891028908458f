//! Silent data corruption: checks of a run for bits that are wrong, and what they found.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sections::RankRecord;
use crate::text::count;

/// Checks of an attempt for silent data corruption.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CorruptionRecord {
    /// Steps between comparisons of replicas; 0 for none.
    pub every_steps: u64,
    /// Steps between those whose gradients are computed twice; 0 for none.
    pub recompute_every_steps: u64,
    /// Number of comparisons, of all kinds.
    pub checks: u64,
    /// Share of all gradients that were computed a second time.
    pub recomputed_share: f64,
    /// Checks that could not be made, and why: what they would find is unknown, not clean.
    pub unavailable: Vec<String>,
    /// Wrong values, in the order of steps.
    pub findings: Vec<Corruption>,
}

/// Wrong values that a check has found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Corruption {
    /// Step in which they were found; 0 before the first one.
    pub step: u64,
    /// Rank that computed or holds them; `null` if the check cannot say.
    pub rank: Option<usize>,
    /// PCI address of its GPU.
    pub gpu: Option<String>,
    /// Values that are wrong.
    pub what: Corrupted,
    /// Tensors of the bucket of gradients, from the first to the last; `null` if unknown.
    pub bucket: Option<String>,
    /// Sum over the values; `null` if it is not finite.
    pub found: Option<f64>,
    /// Sum that was expected; `null` if it is not finite.
    pub expected: Option<f64>,
    /// Ranks that found the expected sum, and those that found another one.
    pub votes: Opinions,
    /// Result of computing the values again; `null` if that was not possible.
    pub repeat: Option<Repeated>,
    /// Effect on the run.
    pub action: CorruptionAction,
}

/// Opinions on a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Opinions {
    /// Number of those for the expected sum.
    pub expected: usize,
    /// Number of those for another one.
    pub other: usize,
}

/// Values that can be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Corrupted {
    /// Weights or moments differ between ranks that hold the same.
    Replicas,
    /// The reduced gradients are not the sum of those of the ranks.
    Reduction,
    /// Gradients differ from those that another rank, or the same one, computes from the same
    /// input.
    Gradients,
    /// Gradients of a fixed input differ, before training.
    SelfTest,
}

impl Corrupted {
    /// Name in records and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Replicas => "replicas",
            Self::Reduction => "reduction",
            Self::Gradients => "gradients",
            Self::SelfTest => "self_test",
        }
    }
}

/// Result of computing values again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Repeated {
    /// They were right: the fault has passed.
    Transient,
    /// They were as wrong as before.
    Persistent,
}

/// Effect of wrong values on a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CorruptionAction {
    /// The step was computed again, and the run goes on with that.
    Repeat,
    /// The run ended, and nothing was updated or saved with them.
    Stop,
}

impl CorruptionRecord {
    /// Describes the checks in a line.
    pub fn summary(&self) -> String {
        let checks = count(self.checks as usize, "comparison");
        let findings = count(self.findings.len(), "finding");
        let unchecked: String =
            self.unavailable.iter().map(|text| format!("; unchecked: {text}")).collect();
        format!("{checks}, {findings}{unchecked}")
    }
}

impl Corruption {
    /// Describes the finding in a sentence.
    pub fn text(&self, ranks: &[RankRecord]) -> String {
        let Self { what, bucket, found, expected, votes, repeat, action, .. } = self;
        let whose = match self.rank.map(|rank| {
            ranks.get(rank).map_or(format!("rank {rank}"), |known| known.location(ranks))
        }) {
            Some(rank) => format!("{rank}: "),
            None => String::new(),
        };
        let what = match what {
            Corrupted::Replicas => {
                "its weights or moments are not those of the ranks that hold the same"
            }
            Corrupted::Reduction => "the reduced gradients are not the sum of the ranks' gradients",
            Corrupted::Gradients => "its gradients are not those that the same input gives",
            Corrupted::SelfTest => "it computes other gradients from a fixed input",
        };
        let what = match (self.rank, self.what) {
            (None, Corrupted::Replicas) => "ranks that hold the same weights and moments differ",
            (None, Corrupted::Gradients) => "ranks compute other gradients from the same input",
            (None, Corrupted::SelfTest) => "ranks compute other gradients from a fixed input",
            _ => what,
        };
        let bucket = bucket.as_ref().map_or(String::new(), |bucket| format!(" ({bucket})"));
        let Opinions { expected: right, other } = votes;
        let repeat = match repeat {
            Some(Repeated::Transient) => ", not when repeated",
            Some(Repeated::Persistent) => ", again when repeated",
            None => "",
        };
        let action = match action {
            CorruptionAction::Repeat => "the step was repeated, and training goes on",
            CorruptionAction::Stop => "the run ends",
        };
        let [found, expected] = [found, expected].map(|sum| match sum {
            Some(sum) => format!("{sum:e}"),
            None => "not finite".to_owned(),
        });
        format!(
            "{whose}{what}{bucket}: a sum is {found}, expected {expected} ({right} to \
             {other}){repeat}; {action}"
        )
    }
}
