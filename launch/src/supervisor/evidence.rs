//! What a launch is judged by: what the run itself has recorded.

/// The record of a launched run.
pub trait Evidence {
    /// What it says now.
    fn judge(&self) -> Judgement;

    /// Whether ranks still use the run's folder, as those may that were cut off.
    fn is_in_use(&self) -> bool;

    /// Adds what only the supervisor knows, that a host was lost or a rank killed.
    ///
    /// # Errors
    /// Why that could not be written, as a sentence.
    fn explain(&mut self, explanation: &Explanation) -> Result<(), String>;
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// State of the run.
    pub state: RunState,
    /// Attempts that have begun.
    pub attempts: usize,
    /// Ranks of the last attempt.
    pub ranks: usize,
    /// Different hosts of these.
    pub hosts: usize,
    /// Why it did not complete, if that is known.
    pub reason: Option<String>,
}

/// State of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// What is launched leaves no record.
    NotRecorded,
    /// There is no record.
    Missing,
    /// It runs, or was killed.
    Unfinished,
    /// All steps are done.
    Complete,
    /// It stopped on request after a committed checkpoint.
    Stopped,
    /// It failed with this exit code.
    Failed(u8),
}

impl RunState {
    /// Whether the run came to an end that no loss explains.
    fn is_ended(self) -> bool {
        match self {
            Self::Complete | Self::Stopped => true,
            Self::Failed(code) => code != super::verdict::PEER_LOST,
            Self::NotRecorded | Self::Missing | Self::Unfinished => false,
        }
    }
}

impl Judgement {
    /// Whether an attempt has begun since then.
    pub(super) fn has_begun_since(&self, before: &Self) -> bool {
        self.attempts > before.attempts
    }

    /// Whether one has, and came to an end that no loss explains.
    pub(super) fn has_ended_since(&self, before: &Self) -> bool {
        self.has_begun_since(before) && self.state.is_ended()
    }

    /// Without a record.
    pub fn without_record(state: RunState) -> Self {
        Self { state, attempts: 0, ranks: 0, hosts: 0, reason: None }
    }
}

/// How the last attempt ended, where the run itself could not record it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// What took ranks away.
    pub loss: Loss,
    /// The exit code of the launch.
    pub code: u8,
    /// Number of attempts that it is not about.
    pub earlier_attempts: usize,
}

/// What took ranks away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Name of the host, as its ranks call it; `None` where it is not known.
    pub host: Option<String>,
    /// The rank that ended; `None` where it is not known, and where the whole host is lost.
    pub rank: Option<usize>,
    /// What happened.
    pub text: String,
}
