//! Machines: hardware, software, and which nodes are alike.

mod description;
mod gpu;
mod libraries;
mod nodes;

pub use description::{Machine, NodeIdentity};
pub use gpu::{ComputeCapability, DeviceProperties};
pub use libraries::Versions;
pub use nodes::{NodeGroup, NodeReport, node_groups};
