//! Summaries of GPUs, hosts and ports during an attempt.

mod summary;

pub use summary::{
    HardwareSummary, Increase, PortSummary, PowerCap, RankHardware, Series, Spread, is_alarming,
};
