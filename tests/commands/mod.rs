//! The command line: help, bad input, limits of the process, and the commands that look at a
//! machine.

mod bad_input;
#[cfg(feature = "mpi")]
mod comm;
mod command_line;
mod devices;
mod doctor;
mod plan_cost;
mod process_limits;
#[cfg(not(feature = "mpi"))]
mod without_mpi;
