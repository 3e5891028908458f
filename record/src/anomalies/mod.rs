//! Anomalies found in the ranks, nodes and transports of an attempt.

mod nodes;
mod ranks;
mod transports;

pub use nodes::node_anomalies;
pub use ranks::rank_anomalies;
pub use transports::{transport_anomalies, transport_gaps, without_gdr};
