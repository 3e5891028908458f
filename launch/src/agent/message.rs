//! Messages between an agent and the supervisor: one JSON object per line.

use serde::{Deserialize, Serialize};

/// Messages of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromAgent {
    /// First message: identity of the host.
    Hello(Hello),
    /// Sign of life: an agent's silence means that the host is cut off.
    Alive,
    /// The host is terminating: everything that runs on it is asked to end.
    Terminating,
    /// All ranks to watch have started.
    RanksStarted,
    /// A watched rank has ended; `None` if its number is not known.
    RankEnded(Option<usize>),
    /// No rank of the launch runs on the host any more.
    NoRanks,
}

/// Identity of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the agent's program.
    pub version: String,
    /// Host name; in a pod, the pod's name.
    pub host: String,
    /// Name of the node that runs the pod, if the pod knows it.
    pub node: Option<String>,
    /// Identity that all processes of one host or container share, and no others have.
    pub identity: String,
}

/// Messages of the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToAgent {
    /// Request to report ended ranks, of `count` ranks on the host.
    Watch {
        /// Number of ranks.
        count: usize,
        /// True if all of them have started before, so that a missing rank has ended.
        have_started: bool,
    },
    /// Asks ranks to save and stop: SIGTERM.
    Stop,
    /// Reports a lost node, so that ranks do not wait for its ranks: SIGUSR2.
    PeerLost,
    /// Kills ranks at once: SIGKILL.
    Kill,
}

/// Formats a message as a line.
pub(crate) fn line(message: &impl Serialize) -> String {
    let text = serde_json::to_string(message).expect("messages have text keys");
    text + "\n"
}
