//! Carrying out operations: by MPI's calls, by exchanges of messages, and in stages over nodes.

pub(super) mod exchange;
mod grid;
pub(super) mod hierarchy;
pub(super) mod in_flight;
pub(super) mod stage_plan;
