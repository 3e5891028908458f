//! Opening and closing MPI, and which ranks share a node.

pub(super) mod node;
pub(super) mod topology;
pub(super) mod world;
