//! Ranks in two dimensions, with the state of training divided among them in every way: the losses
//! of one rank, traffic, checkpoints from any layout to any other, and lost ranks.

mod checkpoints;
mod faults;
mod layout;
mod losses;
