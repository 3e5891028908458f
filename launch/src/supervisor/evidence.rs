//! Evidence by which a launch is judged: the record of the run itself.

use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use device::threads;

use crate::error::Error;

/// The record of a launched run.
pub trait Evidence {
    /// Returns the place of the record, such as `/results/monday`.
    fn place(&self) -> String;

    /// Returns the current state of the record.
    fn judge(&self) -> Judgement;

    /// Returns whether ranks still use the run's folder, as ranks that were cut off may.
    fn is_in_use(&self) -> bool;

    /// Adds facts that only the supervisor knows: a host was lost or a rank killed.
    ///
    /// # Errors
    /// Reason why it could not be written, as a sentence.
    fn explain(&mut self, explanation: &Explanation) -> Result<(), String>;
}

/// Evidence that is read on a separate thread: storage that hangs, such as a file system whose
/// server is gone, must not keep a supervisor from its hosts.
#[derive(Debug)]
pub(super) struct Reader {
    questions: Sender<Question>,
    place: String,
    timeout: Duration,
}

type Question = Box<dyn FnOnce(&mut dyn Evidence) + Send>;

impl Reader {
    /// `timeout` is the time for storage to answer once an attempt has ended.
    pub(super) fn new(
        mut evidence: impl Evidence + Send + 'static,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let place = evidence.place();
        let (questions, asked) = mpsc::channel::<Question>();
        // The thread is not joined: if storage hangs, it ends with the process. (Except where Linux
        // waits for an answer although the process is killed, as of a FUSE daemon that has accepted
        // the call.)
        let answer = move || asked.into_iter().for_each(|question| question(&mut evidence));
        threads::spawn("evidence", answer)?;
        Ok(Self { questions, place, timeout })
    }

    /// Returns the place of the evidence.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Returns the time for storage to answer.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Asks without waiting for the answer. Questions are answered one after another.
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

    /// Returns the record's state at the end of an attempt, or that storage did not answer in time.
    pub(super) fn judge(&self) -> Judgement {
        let answer = self.ask(|evidence| evidence.judge()).recv_timeout(self.timeout);
        answer.unwrap_or_else(|_| Judgement {
            reason: Some(self.timeout_text()),
            ..Judgement::without_record(RunState::Unreadable)
        })
    }

    /// Forwards to [`Evidence::explain`].
    pub(super) fn explain(&self, explanation: Explanation) -> Result<(), String> {
        let answer = self.ask(move |evidence| evidence.explain(&explanation));
        answer.recv_timeout(self.timeout).unwrap_or_else(|_| Err(self.timeout_text()))
    }

    fn timeout_text(&self) -> String {
        let seconds = self.timeout.as_secs();
        format!("{} has not answered for {seconds} s: is storage hung?", self.place)
    }
}

/// Content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// State of the run.
    pub state: RunState,
    /// Number of attempts that have begun.
    pub attempts: usize,
    /// Number of ranks of the last attempt.
    pub ranks: usize,
    /// Number of different hosts of these ranks.
    pub hosts: usize,
    /// Step of the newest checkpoint that the last attempt has committed or resumed from.
    pub committed_step: Option<u64>,
    /// Reason why it did not complete, if known.
    pub reason: Option<String>,
    /// Hosts, as their ranks call them, of ranks that the last attempt found slow until its end.
    pub slow_hosts: Vec<String>,
    /// Hosts of ranks whose wrong values ended the last attempt.
    pub faulty_hosts: Vec<String>,
}

/// State of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// The launched program leaves no record.
    NotRecorded,
    /// There is no record.
    Missing,
    /// Storage does not answer.
    Unreadable,
    /// The run is running, or was killed.
    Unfinished,
    /// All steps are done.
    Complete,
    /// The run stopped on request after a committed checkpoint.
    Stopped,
    /// The run failed with this exit code.
    Failed(u8),
}

impl RunState {
    /// Returns whether the run came to an end that no loss explains.
    fn is_ended(self) -> bool {
        match self {
            Self::Complete | Self::Stopped => true,
            Self::Failed(code) => code != super::verdict::PEER_LOST,
            Self::NotRecorded | Self::Missing | Self::Unreadable | Self::Unfinished => false,
        }
    }
}

impl Judgement {
    /// Returns whether an attempt has begun since then.
    pub(super) fn has_begun_since(&self, before: &Self) -> bool {
        self.attempts > before.attempts
    }

    /// Returns whether an attempt has begun since then, and came to an end that no loss explains.
    pub(super) fn has_ended_since(&self, before: &Self) -> bool {
        self.has_begun_since(before) && self.state.is_ended()
    }

    /// Judgement without a record.
    pub fn without_record(state: RunState) -> Self {
        Self {
            state,
            attempts: 0,
            ranks: 0,
            hosts: 0,
            committed_step: None,
            reason: None,
            slow_hosts: Vec::new(),
            faulty_hosts: Vec::new(),
        }
    }
}

/// Explanation of the last attempt's end, if the run itself could not record it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Loss that took ranks away.
    pub loss: Loss,
    /// Exit code of the launch.
    pub code: u8,
    /// Number of earlier attempts, to which it does not apply.
    pub earlier_attempts: usize,
}

/// Loss of a host or a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Name of the host, as its ranks call it; `None` if not known.
    pub host: Option<String>,
    /// Rank that ended; `None` if not known, and if the whole host is lost.
    pub rank: Option<usize>,
    /// Description of the loss.
    pub text: String,
}
