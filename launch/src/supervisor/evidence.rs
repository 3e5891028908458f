//! What a launch is judged by: what the run itself has recorded.

use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use device::threads;

use crate::error::Error;

/// The record of a launched run.
pub trait Evidence {
    /// Where it is, as in `/results/monday`.
    fn place(&self) -> String;

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

/// Evidence that is read on a thread of its own: storage that hangs, as a file system of a server
/// that is gone does, must not keep a supervisor from its hosts.
#[derive(Debug)]
pub(super) struct Reader {
    questions: Sender<Question>,
    place: String,
}

type Question = Box<dyn FnOnce(&mut dyn Evidence) + Send>;

/// How long storage may take to answer once an attempt has ended.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

impl Reader {
    pub(super) fn new(mut evidence: impl Evidence + Send + 'static) -> Result<Self, Error> {
        let place = evidence.place();
        let (questions, asked) = mpsc::channel::<Question>();
        // Not joined: where storage hangs it ends with the process. (Not where Linux waits for an
        // answer although the process is killed, as of a FUSE daemon that has taken the call in.)
        let answer = move || asked.into_iter().for_each(|question| question(&mut evidence));
        threads::spawn("evidence", answer)?;
        Ok(Self { questions, place })
    }

    /// Where the evidence is.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Asks, and does not wait for the answer. Questions are answered one after another.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut dyn Evidence) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (answer, answers) = mpsc::channel();
        let question: Question = Box::new(move |evidence| {
            let _ = answer.send(question(evidence)); // it may not be waited for any more
        });
        let _ = self.questions.send(question);
        answers
    }

    /// What the record says at the end of an attempt, or that storage does not say it in time.
    pub(super) fn judge(&self) -> Judgement {
        let answer = self.ask(|evidence| evidence.judge()).recv_timeout(PATIENCE);
        answer.unwrap_or_else(|_| Judgement {
            reason: Some(self.silence()),
            ..Judgement::without_record(RunState::Unreadable)
        })
    }

    /// As [`Evidence::explain`].
    pub(super) fn explain(&self, explanation: Explanation) -> Result<(), String> {
        let answer = self.ask(move |evidence| evidence.explain(&explanation));
        answer.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(self.silence()))
    }

    fn silence(&self) -> String {
        let seconds = PATIENCE.as_secs();
        format!("{} has not answered for {seconds} s: is storage hung?", self.place)
    }
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
    /// Step of the newest checkpoint that the last attempt has committed or resumed from.
    pub committed_step: Option<u64>,
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
    /// Storage does not answer.
    Unreadable,
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
            Self::NotRecorded | Self::Missing | Self::Unreadable | Self::Unfinished => false,
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
        Self { state, attempts: 0, ranks: 0, hosts: 0, committed_step: None, reason: None }
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
