//! The phases of a step: every instant belongs to exactly one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Activity of a rank. Its names are the same in the record, in metrics and in traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waiting for the next micro-batch.
    Data,
    /// Activations and loss.
    Forward,
    /// Gradients.
    Backward,
    /// Waiting for communication that is not hidden behind computation.
    CommExposed,
    /// Norm, clip and update.
    Optimizer,
    /// Training stopped for a checkpoint.
    Checkpoint,
    /// Held-out loss.
    Eval,
    /// Everything else.
    Other,
}

impl Phase {
    /// Every phase, in the order of a step.
    pub const ALL: [Self; 8] = [
        Self::Data,
        Self::Forward,
        Self::Backward,
        Self::CommExposed,
        Self::Optimizer,
        Self::Checkpoint,
        Self::Eval,
        Self::Other,
    ];

    /// Name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::CommExposed => "comm_exposed",
            Self::Optimizer => "optimizer",
            Self::Checkpoint => "checkpoint",
            Self::Eval => "eval",
            Self::Other => "other",
        }
    }
}

/// One value for each phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "the fields are the phases, documented there")]
pub struct ByPhase<T> {
    pub data: T,
    pub forward: T,
    pub backward: T,
    pub comm_exposed: T,
    pub optimizer: T,
    pub checkpoint: T,
    pub eval: T,
    pub other: T,
}

impl<T: Copy> ByPhase<T> {
    /// Computes a value for each phase, in the order of [`Phase::ALL`].
    pub fn from_fn(mut value: impl FnMut(Phase) -> T) -> Self {
        Self {
            data: value(Phase::Data),
            forward: value(Phase::Forward),
            backward: value(Phase::Backward),
            comm_exposed: value(Phase::CommExposed),
            optimizer: value(Phase::Optimizer),
            checkpoint: value(Phase::Checkpoint),
            eval: value(Phase::Eval),
            other: value(Phase::Other),
        }
    }

    /// The value of a phase.
    pub fn get(&self, phase: Phase) -> T {
        match phase {
            Phase::Data => self.data,
            Phase::Forward => self.forward,
            Phase::Backward => self.backward,
            Phase::CommExposed => self.comm_exposed,
            Phase::Optimizer => self.optimizer,
            Phase::Checkpoint => self.checkpoint,
            Phase::Eval => self.eval,
            Phase::Other => self.other,
        }
    }

    /// Mutable value of a phase.
    pub fn get_mut(&mut self, phase: Phase) -> &mut T {
        match phase {
            Phase::Data => &mut self.data,
            Phase::Forward => &mut self.forward,
            Phase::Backward => &mut self.backward,
            Phase::CommExposed => &mut self.comm_exposed,
            Phase::Optimizer => &mut self.optimizer,
            Phase::Checkpoint => &mut self.checkpoint,
            Phase::Eval => &mut self.eval,
            Phase::Other => &mut self.other,
        }
    }
}

/// Nanoseconds in each phase of one step; they add up to the wall time of the step exactly.
pub type PhaseTimes = ByPhase<u64>;

impl PhaseTimes {
    /// Wall time in nanoseconds: the sum over all phases.
    pub fn wall_ns(&self) -> u64 {
        Phase::ALL.iter().map(|&phase| self.get(phase)).sum()
    }

    /// Nanoseconds of training: the wall time without checkpoints and evaluation.
    ///
    /// It includes `other`, so that unattributed time never improves a rate.
    pub fn step_ns(&self) -> u64 {
        self.wall_ns() - self.checkpoint - self.eval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_time_excludes_checkpoint_and_evaluation_only() {
        let times = ByPhase {
            data: 1,
            optimizer: 2,
            checkpoint: 4,
            eval: 8,
            other: 16,
            ..ByPhase::default()
        };
        assert_eq!(times.wall_ns(), 31);
        assert_eq!(times.step_ns(), 19);
    }

    #[test]
    fn phase_names_match_their_serialization() {
        for phase in Phase::ALL {
            let name = serde_json::to_value(phase).unwrap();
            assert_eq!(name, phase.name());
            let times = ByPhase::from_fn(|other| u64::from(other == phase));
            assert_eq!(serde_json::to_value(times).unwrap()[phase.name()], 1);
            assert_eq!(times.get(phase), 1);
        }
    }
}
