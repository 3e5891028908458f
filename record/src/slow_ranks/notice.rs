//! Notices of what has become slower for all ranks.

/// Part of a step that all ranks share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedPart {
    /// Waiting for communication, of the rank that waits least.
    Network,
    /// Own time of the median rank.
    OwnTime,
}

/// A change that no rank explains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Notice {
    /// Part that takes longer.
    pub part: SharedPart,
    /// Share by which a step, or the median own time, takes longer.
    pub slower_share: f64,
    /// First step of the window in which it was found.
    pub since_step: u64,
    /// Step from which it is over; `None` while it is not.
    pub until_step: Option<u64>,
}

impl Notice {
    /// Describes the notice in a sentence.
    pub fn text(&self) -> String {
        let Self { part, slower_share, since_step, until_step } = self;
        let percent = 100.0 * slower_share;
        match (part, until_step) {
            (SharedPart::Network, None) => format!(
                "the network is slower since step {since_step}: every rank waits longer for it, by \
                 {percent:.0} % of a step, and no rank explains it"
            ),
            (SharedPart::OwnTime, None) => format!(
                "all ranks are slower since step {since_step}: the median rank takes {percent:.0} \
                 % more time of its own than before"
            ),
            (SharedPart::Network, Some(step)) => {
                format!("the network is no longer slower since step {step}")
            }
            (SharedPart::OwnTime, Some(step)) => {
                format!("all ranks are no longer slower since step {step}")
            }
        }
    }
}
