//! NCCL: operations on the memory of CUDA devices, beside a backend for the host's memory.
//!
//! `opening` connects the ranks; `backend` implements the contract; `operations` has the events of
//! operations in flight; `device_clock` turns events into times of the host; `roll_call` finds lost
//! peers. `library` and `communicator` are NCCL's interface, and `log_settings` the variables that
//! control its log.

mod backend;
mod communicator;
mod device_clock;
mod log_settings;
mod opening;
mod operations;
mod roll_call;

pub use backend::Nccl;
pub use log_settings::{LogSettings, Variable};

const NAME: &str = "nccl";
