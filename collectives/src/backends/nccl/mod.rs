//! NCCL: operations on the memory of CUDA devices, beside a backend for the host's memory.
//!
//! `backend` implements the contract for each `group`, over the one `queue` of a device. A `route`
//! has the lines of ranks that an operation passes, each with a `communicator`, which `opening`
//! connects. `operations` has the events of operations in flight; `device_clock` turns events into
//! times of the host; `failure` makes errors, and `roll_call` finds lost peers. `log_settings` has
//! the variables that control NCCL's log.

mod backend;
mod communicator;
mod device_clock;
mod failure;
mod group;
mod log_settings;
mod opening;
mod operations;
mod queue;
mod roll_call;
mod route;

pub use backend::Nccl;
pub use log_settings::{LogSettings, Variable};

const NAME: &str = "nccl";
