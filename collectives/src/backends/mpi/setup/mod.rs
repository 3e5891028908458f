//! Opening and closing MPI, and discovery of the ranks that share a node.

pub(super) mod node;
pub(super) mod topology;
pub(super) mod world;
