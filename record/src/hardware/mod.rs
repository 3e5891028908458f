//! What GPUs, hosts and ports did during an attempt.

mod summary;

pub use summary::{
    HardwareSummary, Increase, PortSummary, RankHardware, Series, Spread, is_alarming,
};
