//! What an agent and the supervisor tell each other: a JSON object a line.

use serde::{Deserialize, Serialize};

/// What an agent says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromAgent {
    /// First: which host it is on.
    Hello(Hello),
    /// It is still there: its silence means that the host is cut off.
    Alive,
    /// The host is to go: what runs on it is asked to end.
    Terminating,
    /// As many ranks as were to be watched run.
    RanksStarted,
    /// A rank that was watched has ended; `None` where it is not known which.
    RankEnded(Option<usize>),
    /// No rank of the launch runs on the host any more.
    NoRanks,
}

/// Who an agent is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of its program.
    pub version: String,
    /// Host name; in a pod, the pod's name.
    pub host: String,
    /// Name of the node that runs the pod, where the pod knows it.
    pub node: Option<String>,
    /// The same in all processes of one host or container, and in those of no other.
    pub identity: String,
}

/// What the supervisor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToAgent {
    /// It is to be said when a rank ends, of so many on the host.
    Watch {
        /// How many.
        count: usize,
        /// Whether all of them have started before, so that one that is missing has ended.
        have_started: bool,
    },
    /// Ranks are to save and to stop: SIGTERM.
    Stop,
    /// A node is lost, so that ranks must not wait for its ranks: SIGUSR2.
    PeerLost,
    /// Ranks are to end at once: SIGKILL.
    Kill,
}

/// A message as a line.
pub(crate) fn line(message: &impl Serialize) -> String {
    let text = serde_json::to_string(message).expect("messages have text keys");
    text + "\n"
}
